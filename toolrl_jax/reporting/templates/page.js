"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const holders = [...document.querySelectorAll("[data-figure]")];
  const isNarrow = innerWidth < 600;
  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: isNarrow ? false : "hover",
    // A double click shows the whole curve again.
    modeBarButtons: [["toImage", "resetScale2d"]],
  };
  const paint = (layout) => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    layout.font = { ...layout.font, color: ink };
    layout.hoverlabel = {
      bgcolor: style.getPropertyValue("--paper").trim(),
      font: { color: ink },
    };
    layout.modebar = { bgcolor: "rgba(0,0,0,0)" };
    if (isNarrow) {
      // A finger that scrolls the page must not zoom a chart.
      layout.dragmode = false;
      layout.margin = { ...layout.margin, l: 50, r: 8 };
    }
    return layout;
  };
  for (const holder of holders) {
    const { data, layout } = JSON.parse(
      document.getElementById(holder.dataset.figure).textContent,
    );
    Plotly.newPlot(holder, data, paint(layout), options);
  }
  dark.addEventListener("change", () => {
    for (const holder of holders) {
      Plotly.relayout(holder, paint({ ...holder.layout }));
    }
  });
})();
