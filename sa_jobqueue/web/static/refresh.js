// Replace <main> every few seconds, unless somebody is reading or writing in it.
"use strict";

const banner = document.getElementById("banner");
const seconds = Number(document.querySelector("main").dataset.refresh);

function busy() {
  const main = document.querySelector("main");
  const field = document.activeElement.closest("main input, main select, main textarea, main button");
  return document.hidden || field || main.querySelector("input:checked") || !getSelection().isCollapsed;
}

async function freshMain() {
  const answer = await fetch(location.href, { signal: AbortSignal.timeout(15000), redirect: "manual" });
  if (answer.status >= 500) throw new Error(`answered ${answer.status}`);
  if (!answer.ok) return location.reload(); // a login is wanted, or the job is gone
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.title = page.title;
  return document.adoptNode(page.querySelector("main"));
}

function replace(main) {
  const focused = document.activeElement.closest("main") ? document.activeElement.id : "";
  const opened = [...document.querySelectorAll("main details[open]")].map((each) => each.id);
  document.querySelector("main").replaceWith(main);
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  document.getElementById(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  try {
    const main = busy() ? null : await freshMain();
    if (main && !busy()) replace(main);
    if (main) banner.hidden = true;
  } catch {
    banner.hidden = false;
  }
  setTimeout(refresh, seconds * 1000);
}

if (seconds) setTimeout(refresh, seconds * 1000);
