(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");
  var columns = Array.from(document.querySelectorAll(".column"));
  var sites = Array.from(document.querySelectorAll(".site"));
  var list = document.getElementById("pick");
  var readout = document.getElementById("readout");
  if (!columns.length || !list) { return; }
  var chosen = 0;

  function tell(column) {
    var figures = column.dataset;
    readout.replaceChildren.apply(readout, [figures.name, figures.damage, figures.noise].map(function (text, index) {
      var part = document.createElement(index ? "span" : "b");
      part.textContent = text;
      return part;
    }));
  }
  function choose(index, keepFocus) {
    chosen = (index + columns.length) % columns.length;
    columns.forEach(function (column, at) {
      column.classList.toggle("chosen", at === chosen);
      column.tabIndex = at === chosen ? 0 : -1;
      column.setAttribute("aria-current", at === chosen ? "true" : "false");
    });
    sites.forEach(function (site, at) { site.classList.toggle("chosen", at === chosen); });
    list.selectedIndex = chosen;
    tell(columns[chosen]);
    if (keepFocus) { columns[chosen].focus({ preventScroll: true }); }
  }
  columns.forEach(function (column, index) {
    column.setAttribute("aria-label", column.title);
    column.removeAttribute("title");
    column.addEventListener("mouseenter", function () { tell(column); });
    column.addEventListener("mouseleave", function () { tell(columns[chosen]); });
    column.addEventListener("focus", function () { tell(column); });
    column.addEventListener("click", function (event) { event.preventDefault(); choose(index, true); });
    column.addEventListener("keydown", function (event) {
      var move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Home") { move = -index; }
      if (event.key === "End") { move = columns.length - 1 - index; }
      if (move === undefined) { return; }
      event.preventDefault();
      choose(index + move, true);
    });
  });
  document.querySelectorAll("tbody th a").forEach(function (link, index) {
    link.addEventListener("click", function (event) {
      event.preventDefault();
      choose(index, false);
      document.getElementById("one").scrollIntoView();
    });
  });
  list.addEventListener("change", function () { choose(list.selectedIndex, false); });
  document.getElementById("previous").addEventListener("click", function () { choose(chosen - 1, false); });
  document.getElementById("next").addEventListener("click", function () { choose(chosen + 1, false); });
  var linked = sites.findIndex(function (site) { return "#" + site.id === location.hash; });
  choose(linked >= 0 ? linked : sites.findIndex(function (site) { return site.classList.contains("first"); }), false);
})();
