"use strict";

// The table has the rows of the series that are checked.
for (const box of document.querySelectorAll("#series input")) {
  box.addEventListener("change", () => {
    for (const cell of document.querySelectorAll("#results td:first-child")) {
      if (cell.textContent === box.value) cell.parentElement.hidden = !box.checked;
    }
  });
}
