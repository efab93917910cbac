"use strict";
// What the pointer is on, in words. The same numbers stand in the tables and captions.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", event => {
  const mark = event.target.closest("[data-t]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.t;
  tip.style.left = tip.style.top = "0";  // else it is as narrow as what was left of the window beside it
  const box = tip.getBoundingClientRect();
  const {clientWidth: width, clientHeight: height} = document.documentElement;  // without scroll bars
  const left = event.clientX + 14, top = event.clientY + 14;
  tip.style.left = Math.max(4, Math.min(left, width - box.width - 8)) + "px";
  tip.style.top = Math.max(4, top + box.height > height ? event.clientY - box.height - 10 : top) + "px";
});
document.addEventListener("keydown", event => { if (event.key === "Escape") { tip.hidden = true; mark(""); } });

// A click on tensors marks them wherever they are shown; a second one, or Escape, ends that.
const marked = document.getElementById("marked");
function mark(key, name) {
  for (const old of document.querySelectorAll(".lit")) old.classList.remove("lit");
  const found = key ? document.querySelectorAll(`[data-k~="${key}"]`) : [];
  for (const place of found) place.classList.add("lit");
  document.body.dataset.marked = key;
  marked.hidden = !found.length;
  marked.querySelector("span").textContent = found.length ? `${name}: marked in ${found.length} places` : "";
}
marked.querySelector("button").addEventListener("click", () => mark(""));
document.addEventListener("click", event => {
  const place = event.target.closest("[data-k]");
  if (!place || (place.matches("tr, li") && !event.target.closest(".pick, .bar"))) return;
  const key = place.dataset.k.split(" ")[0];
  const pick = place.querySelector(".pick");
  const told = event.target.closest("[data-t]");
  const name = pick ? pick.textContent : told ? told.dataset.t.split("\n")[0] : place.textContent;
  mark(document.body.dataset.marked === key ? "" : key, name);
});

// A click on a heading sorts by that column, a second one turns the order round. Unknown values come last.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const number = head.classList.contains("n");
    const key = row => {
      const cell = row.cells[column];
      if (cell.querySelector(".unknown")) return null;
      return number ? Number(cell.dataset.v) : cell.textContent;
    };
    const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = number ? a - b : a.localeCompare(b, undefined, {numeric: true});
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}

for (const input of document.querySelectorAll(".filter input")) {
  const body = input.closest("section").querySelector("tbody");
  input.addEventListener("input", () => {
    const word = input.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
}

// What is folded is printed too, and folded again then.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const folded of opened) folded.open = true;
});
addEventListener("afterprint", () => { for (const folded of opened) folded.open = false; });
