"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const templates = read("figure-templates");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot[data-figure]")];
  const template = () => templates[dark.matches ? "dark" : "light"];
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const draw = (node) => {
    const figure = read(node.dataset.figure);
    figure.layout = { ...figure.layout, template: template(), autosize: true };
    return Plotly.newPlot(node, figure.data || [], figure.layout, options);
  };
  const failed = (node, error) => {
    node.textContent = "This figure could not be drawn: " + error.message;
  };
  Promise.all(plots.map((node) => Promise.resolve().then(() => draw(node)).catch((e) => failed(node, e)))).then(() => {
    document.documentElement.dataset.ready = "yes";
  });
  const retheme = (chosen) => plots.forEach((node) => node.data && Plotly.relayout(node, { template: chosen }));
  dark.addEventListener("change", () => retheme(template()));
  window.addEventListener("beforeprint", () => retheme(templates.light));
  window.addEventListener("afterprint", () => retheme(template()));
})();
