// Pages of papers: a click on a cell shows the command of its row, a click on Copy copies it; checkboxes filter rows.
"use strict";

const tables = document.querySelectorAll(".published table");

function show(button) {
  const row = button.closest("tr");
  const how = row.nextElementSibling;
  how.hidden = !how.hidden;
  for (const cell of row.querySelectorAll("button.cell")) cell.setAttribute("aria-expanded", String(!how.hidden));
  if (!how.hidden) how.querySelector("button.copy").focus({ preventScroll: true });
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    // Without permission, as in files that no server sends: the reader copies the selection.
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function filter() {
  const wanted = [...document.querySelectorAll("[data-filter]:checked")].map((box) => box.dataset.filter);
  let shown = 0;
  let all = 0;
  for (const table of tables) {
    for (const row of table.querySelectorAll("tr[data-flags]")) {
      const flags = row.dataset.flags.split(" ");
      row.hidden = !wanted.every((name) => flags.includes(name));
      all += 1;
      shown += row.hidden ? 0 : 1;
      const how = row.nextElementSibling;
      if (row.hidden && how?.matches(".how")) how.hidden = true;
    }
    table.parentElement.hidden = !table.querySelector("tr[data-flags]:not([hidden])");
  }
  document.querySelector(".filters output").textContent = `${shown} of ${all} rows`;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.cell, button.copy");
  if (button) (button.matches(".copy") ? copy : show)(button);
});
document.addEventListener("change", (event) => event.target.matches("[data-filter]") && filter());
filter();
