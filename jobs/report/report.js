(function () {
  var tip = document.getElementById("tip");
  document.querySelectorAll("svg.c title").forEach(function (title) {
    title.parentNode.setAttribute("data-t", title.textContent);
    title.remove();
  });
  document.addEventListener("pointerover", function (event) {
    var at = event.target.closest ? event.target.closest("[data-t]") : null;
    tip.hidden = !at;
    if (at) tip.textContent = at.getAttribute("data-t");
  });
  document.addEventListener("pointermove", function (event) {
    if (tip.hidden) return;
    var x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    var y = event.clientY + 18;
    if (y + tip.offsetHeight > innerHeight) y = event.clientY - tip.offsetHeight - 10;
    tip.style.left = Math.max(x, 4) + "px";
    tip.style.top = y + "px";
  });
  function value(row, column) {
    var cell = row.cells[column];
    var number = cell.getAttribute("data-v");
    return number === null ? cell.textContent.trim() : number === "" ? -Infinity : Number(number);
  }
  document.querySelectorAll("table.sortable th").forEach(function (head) {
    var button = document.createElement("button");
    button.append.apply(button, head.childNodes);
    head.append(button);
    button.onclick = function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      var body = head.closest("table").tBodies[0];
      head.parentNode.querySelectorAll("th").forEach(function (each) { each.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      Array.from(body.rows).sort(function (a, b) {
        var x = value(a, head.cellIndex), y = value(b, head.cellIndex);
        var order = typeof x === "number" && typeof y === "number" ? x - y || 0 : String(x).localeCompare(String(y));
        return down ? -order : order;
      }).forEach(function (row) { body.append(row); });
    };
  });
})();
