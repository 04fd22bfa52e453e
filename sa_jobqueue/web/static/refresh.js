// Bring <main> up to date every few seconds, and leave alone what somebody reads or writes in it.
"use strict";

const banner = document.getElementById("banner");
const live = document.getElementById("live");
const seconds = Number(document.querySelector("main").dataset.refresh);
let tag = "";
let seen = Date.now();

const boxes = () => [...document.querySelectorAll("main input[type=checkbox][name=key]")];
const ticked = () => boxes().filter((box) => box.checked).length;

function tell() {
  const age = Math.round((Date.now() - seen) / 1000), number = ticked();
  const stopped = `stopped while ${number} ${number === 1 ? "job is" : "jobs are"} ticked`;
  live.textContent = number ? stopped : `live, ${age} s ago`;
}

// What the browser's user has changed stays: what was typed, ticked or opened.
function copyAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.dataset.row || node.id)) || "";

function isSame(old, fresh) {
  return old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

// Change an element into another one, but for the nodes that both have: these keep their scroll,
// focus and selection.
function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  copyAttributes(old, fresh);
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    let match = next;
    while (match && !isSame(match, child)) match = match.nextSibling;
    if (!match || (match !== next && !keyOf(child))) {
      old.insertBefore(document.importNode(child, true), next);
      continue;
    }
    while (next !== match) next = remove(next);
    next = match.nextSibling;
    become(match, child);
  }
  while (next) next = remove(next);
}

function remove(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

async function ask() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const signal = AbortSignal.timeout(15000);
  const answer = await fetch(location.href, { headers, signal, redirect: "manual" });
  if (answer.status >= 500) throw new Error(`answered ${answer.status}`);
  if (answer.status === 304) return null;
  if (!answer.ok) return location.reload(); // a login is wanted, or the job is gone
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return { page, tag: answer.headers.get("ETag") };
}

async function refresh() {
  try {
    if (!document.hidden && !ticked()) {
      const fresh = await ask();
      if (fresh && !ticked()) {
        tag = fresh.tag;
        document.title = fresh.page.title;
        become(document.querySelector("main"), fresh.page.querySelector("main"));
        showTicks();
      }
      seen = Date.now();
      banner.hidden = true;
    }
  } catch {
    banner.hidden = false;
  }
  setTimeout(refresh, seconds * 1000);
}

// One box ticks all jobs of the page; without JavaScript it would do nothing, so it is hidden.
function tickAll() {
  for (const box of boxes()) box.checked = this.checked;
}

function showTicks() {
  const all = document.getElementById("all");
  if (!all) return;
  const number = ticked();
  all.hidden = false;
  all.onchange = tickAll;
  all.checked = number > 0 && number === boxes().length;
  all.indeterminate = number > 0 && !all.checked;
  document.getElementById("ticked").textContent = number || "";
}

// Keys: "/" finds, "j" and "k" go from job to job, "x" ticks, "r" retries what is ticked.
function press(event) {
  const writes = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || writes) return;
  const jobs = [...document.querySelectorAll("main a.job")];
  const here = jobs.findIndex((job) => job.closest("tr").contains(document.activeElement));
  const act = {
    "/": () => document.getElementById("key")?.focus(),
    j: () => jobs[Math.min(here + 1, jobs.length - 1)]?.focus(),
    k: () => jobs[Math.max(here - 1, 0)]?.focus(),
    x: () => jobs[here]?.closest("tr").querySelector("input[type=checkbox]")?.click(),
    r: () => document.querySelector("#jobs-form button[value=retry]")?.click(),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// A long work goes on by itself, part after part, until somebody leaves the page by "Stop".
const next = document.getElementById("go-on");
if (next) setTimeout(() => next.submit(), 1000);

document.addEventListener("change", showTicks);
document.addEventListener("keydown", press);
showTicks();

if (seconds) {
  setTimeout(refresh, seconds * 1000);
  live.hidden = false;
  setInterval(tell, 1000);
  document.addEventListener("change", tell);
  tell();
}
