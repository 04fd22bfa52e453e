"""The oldest versions that setup.cfg promises, as a file of requirements for pip-audit.

python -m tests.packaging.floors FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

from .test_requirements import versions_promised

if __name__ == "__main__":
    lines = (f"{name}=={version}\n" for name, version in versions_promised().items())
    Path(sys.argv[1]).write_text("".join(lines), encoding="utf-8")
