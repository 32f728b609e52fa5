# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Style sheet and script of a page, with the hashes by which its policy admits them."""

from base64 import b64encode
import hashlib

__all__ = ("SCRIPT", "SCRIPT_HASH", "STYLE", "STYLE_HASH")

# Text colours have a contrast of at least 4.5:1 to their background in both themes (WCAG 2.1 AA).
STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2430; --soft: #566074;
  --line: #d8dde6; --card: #f6f7f9; --a: #2058b5; --b: #b93a06; --c: #236b31; --d: #743d9f;
  --e: #8a5a00; --f: #00697a; --drop: rgba(100, 110, 130, .10);
  --on: rgba(43, 138, 62, .13); --edge: rgba(20, 30, 50, .38); }
@media (prefers-color-scheme: dark) { :root { --page: #14181f; --ink: #e6e9ee; --soft: #a4aec0;
  --line: #323a47; --card: #1b212b; --a: #7db1ff; --b: #ff9263; --c: #74c986; --d: #cd9ff2;
  --e: #e0b050; --f: #5ec8da; --drop: rgba(150, 160, 180, .10);
  --on: rgba(105, 194, 125, .14); --edge: rgba(190, 205, 235, .42); } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 1.5rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
h3 { font-size: .95rem; margin: 0; }
.summary { font-size: 1.2rem; margin: .8rem 0 0; max-width: 60rem; }
.badge { border: 2px solid; border-radius: 6px; padding: 0 .5rem; font-size: 1rem;
  margin-right: .3rem; white-space: nowrap; } .on { color: var(--c); } .off { color: var(--soft); }
.cards { display: grid; gap: .8rem; margin: .8rem 0;
  grid-template-columns: repeat(auto-fit, minmax(max(15rem, 31%), 1fr)); }
.card { background: var(--card); border-radius: 8px; padding: .8rem 1rem;
  border-top: 5px solid var(--soft); }
.card.good { border-color: var(--c); } .card.bad { border-color: var(--b); }
.figure { font-size: 2.3rem; font-weight: 650; line-height: 1.2; color: var(--soft); }
.good .figure { color: var(--c); } .bad .figure { color: var(--b); }
.card ul { list-style: none; margin: .5rem 0 0; padding: 0; font-size: .85rem;
  color: var(--soft); }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--a); }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.skip { position: absolute; left: -100rem; } .skip:focus { left: 1rem; top: .3rem;
  background: var(--page); padding: .2rem .6rem; }
:focus-visible { outline: 3px solid var(--a); outline-offset: 2px; }
button { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--soft);
  border-radius: 6px; padding: .1rem .8rem; }
.notes { border: 2px solid var(--b); border-radius: 8px; padding: .6rem 1rem .6rem 2rem;
  margin: 1rem 0 0; }
/* A shadow at each edge behind which there is more: the covers move with the content. */
.scroll { --under: var(--page); overflow-x: auto;
  background: linear-gradient(to right, var(--under) 1.2rem, transparent) 0 0 / 2.4rem 100%,
    linear-gradient(to left, var(--under) 1.2rem, transparent) 100% 0 / 2.4rem 100%,
    linear-gradient(to right, var(--edge), transparent) 0 0 / 1.1rem 100%,
    linear-gradient(to left, var(--edge), transparent) 100% 0 / 1.1rem 100%, var(--under);
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
figure:not(.table) .scroll { --under: var(--card); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .88rem; }
figcaption { text-align: left; color: var(--soft); font-size: .88rem;
  padding: .2rem 0 .3rem; }
th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; overflow-wrap: normal; } thead th { color: var(--soft); }
.text { text-align: left; } td:not(.text) { white-space: nowrap; }
td.text, th.text { min-width: 3.5rem; }
td.text { overflow-wrap: break-word; }
figure { margin: .8rem 0; } figure.table { margin: 0; }
figure:not(.table) .scroll svg { width: 100%; min-width: 740px; height: auto; display: block; }
@media (max-width: 600px) { figure:not(.table) .scroll svg { min-width: 960px; } }
svg text { font: 14px system-ui, sans-serif; fill: var(--soft); }
svg text.phase { font-weight: 600; fill: var(--ink); }
.grid { stroke: var(--line); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.a { stroke: var(--a); } .b { stroke: var(--b); stroke-dasharray: 9 4; }
.c { stroke: var(--c); stroke-dasharray: 2 4; } .d { stroke: var(--d); stroke-dasharray: 14 4 2 4; }
.e { stroke: var(--e); stroke-dasharray: 5 5; } .f { stroke: var(--f); stroke-width: 3; }
.goal { stroke: var(--ink); stroke-dasharray: 4 6; stroke-width: 1.2; }
.goal-a { stroke: var(--a); stroke-dasharray: 4 6; stroke-width: 1.2; }
.goal-b { stroke: var(--b); stroke-dasharray: 4 6; stroke-width: 1.2; }
.phase-band { fill: none; stroke: var(--line); } .dropped { fill: var(--drop); stroke: none; }
.idle-on { fill: var(--on); stroke: none; }
.marker path { stroke: var(--soft); stroke-dasharray: 1 3; fill: none; }
.marker .head { fill: var(--ink); stroke: none; }
.legend { font-size: .85rem; color: var(--soft); } .legend span { margin-right: 1.4rem; }
.sample { width: 2.5rem; height: .5rem; margin-right: .4rem; vertical-align: middle; }
.ratio { margin-right: .5rem; } .bar { width: 5.5rem; height: .8rem; vertical-align: middle; }
.bar { background: var(--card); } .within { fill: var(--c); } .beyond { fill: var(--b); }
.point { stroke: var(--ink); stroke-width: 1.5; }
.shade1 { background: rgba(217, 72, 15, .05); }
.shade2 { background: rgba(217, 72, 15, .10); }
.shade3 { background: rgba(217, 72, 15, .15); }
.shade4 { background: rgba(217, 72, 15, .20); }
.shade5 { background: rgba(217, 72, 15, .26); }
.shade6 { background: rgba(217, 72, 15, .32); }
.shade7 { background: rgba(217, 72, 15, .38); }
.shade8 { background: rgba(217, 72, 15, .44); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; }
ol { padding-left: 1.4rem; font-size: .9rem; }
"""

# Replaces the content by that of the page now, every five seconds while the page is visible and
# nothing in it is selected. Focus and scroll positions stay.
SCRIPT = """
"use strict";
const state = document.getElementById("state"), button = document.getElementById("updates");
let stopped = false;
document.getElementById("live").hidden = false;
button.addEventListener("click", () => {
  stopped = !stopped;
  button.setAttribute("aria-pressed", String(stopped));
  state.textContent = stopped ? "stopped" : "";
});
async function renew() {
  const answer = await fetch(location.pathname, {cache: "no-store"});
  if (!answer.ok) throw new Error("status " + answer.status);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const old = document.querySelector("main"), main = document.adoptNode(page.querySelector("main"));
  const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
  const left = new Map([...old.querySelectorAll(".scroll")].map(e => [e.id, e.scrollLeft]));
  old.replaceWith(main);
  for (const e of main.querySelectorAll(".scroll")) e.scrollLeft = left.get(e.id) || 0;
  const found = focus && document.getElementById(focus);
  if (found) found.focus({preventScroll: true});
}
async function step() {
  try {
    if (!stopped && !document.hidden && getSelection().isCollapsed) {
      await renew();
      if (!stopped) state.textContent = "";
    }
  } catch (error) {
    state.textContent = "not live: " + error.message;
  }
  setTimeout(step, 5000);
}
setTimeout(step, 5000);
"""


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


STYLE_HASH = _hash(STYLE)
SCRIPT_HASH = _hash(SCRIPT)
