"use strict";
// Draws the data in #data with Plotly. A choice that is hidden goes from the curves, the bars and the tables.
function draw() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = data.choices.map(() => true);
  const logged = new Set(data.plots.filter((plot) => plot.log).map((plot) => plot.id));
  let axis = data.first;
  let smoothing = 0;
  const narrow = () => window.innerWidth < 640;
  const settings = { responsive: true, displayModeBar: false, showTips: false };

  function layout(more) {
    const side = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), size: 12 },
      margin: { l: 48, r: 12, t: 10, b: 40 }, showlegend: false, hovermode: "closest",
      hoverlabel: { bgcolor: css("--paper"), font: { color: css("--ink") }, namelength: -1 },
      dragmode: narrow() ? false : "zoom", ...more,
      xaxis: { ...side, ...(more.xaxis || {}) }, yaxis: { ...side, ...(more.yaxis || {}) },
    };
  }

  // The mean of each value and its neighbours, as many on both sides.
  function smooth(values) {
    return values.map((value, i) => {
      const reach = Math.min(smoothing, i, values.length - 1 - i);
      const near = values.slice(i - reach, i + reach + 1).filter((v) => v !== null);
      return value === null || !near.length ? value : near.reduce((a, b) => a + b, 0) / near.length;
    });
  }

  function trace(line) {
    const x = data.choices[line.choice].streams[line.stream][axis] || [];
    const y = Array.isArray(line.y) ? line.y : line.y[axis] || [];
    const ink = data.colours[line.choice];
    const base = { x, y: line.style === "points" ? y : smooth(y), name: line.name, visible: shown[line.choice], connectgaps: true };
    if (line.style === "low" || line.style === "high") {
      const fill = line.style === "high" ? { fill: "tonexty", fillcolor: ink + "30" } : {};
      return { ...base, ...fill, mode: "lines", line: { width: 0, color: ink }, hoverinfo: "skip" };
    }
    if (line.style === "points") return { ...base, mode: "markers", marker: { color: ink, size: 4, opacity: 0.55 } };
    const few = data.choices[line.choice].seeds === 1 && y.length <= 60;
    return { ...base, mode: few ? "lines+markers" : "lines", line: { color: ink, dash: line.style, width: 2 }, marker: { size: 4 } };
  }

  const units = { bytes: { tickformat: "~s", ticksuffix: "B" }, samples: { tickformat: "~s" }, step: { tickformat: ",d" } };

  function decades(plot) {
    const values = plot.lines.flatMap((line) => (Array.isArray(line.y) ? line.y : line.y[axis] || [])).filter((y) => y > 0);
    return Math.log10(values.reduce((a, b) => Math.max(a, b)) / values.reduce((a, b) => Math.min(a, b)));
  }

  function curve(plot) {
    const title = data.axes.find((a) => a.key === axis).label;
    const more = { xaxis: { title: { text: title }, rangemode: "tozero", ...units[axis] }, yaxis: plot.title === "Bytes sent" ? { ...units.bytes } : {} };
    const log = logged.has(plot.id);
    // With a format the labels are whole numbers: without one, 20 is written as 2.
    if (log) Object.assign(more.yaxis, { type: "log", dtick: decades(plot) > 3 ? 1 : "D2", tickformat: "~s" });
    else if (plot.range) more.yaxis.range = plot.range;
    else if (plot.zero) more.yaxis.rangemode = "tozero";
    if (plot.reference !== undefined) {
      const y = log ? Math.log10(plot.reference) : plot.reference, soft = css("--soft");
      more.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: plot.reference, y1: plot.reference, line: { dash: "dot", width: 1.5, color: soft } }];
      if (plot.label)
        more.annotations = [{ xref: "paper", x: 0, xanchor: "left", y, yanchor: "bottom", text: plot.label, showarrow: false, font: { color: soft, size: 12 } }];
    }
    Plotly.react(plot.id, plot.lines.map(trace), layout(more), settings);
  }

  function wrapped(name) {
    const lines = [""], most = narrow() ? 16 : 32;
    for (const word of name.split(" ")) {
      if (lines.at(-1) && (lines.at(-1) + word).length > most) lines.push("");
      lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
    }
    return lines.join("<br>").replaceAll("&", "&amp;");
  }

  const legend = { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" };

  function bars(box, labels, kinds, colours, unit) {
    const horizontal = kinds.map((kind, k) => ({
      type: "bar", orientation: "h", name: kind.name, y: labels, x: kind.values, marker: { color: colours[k % colours.length] },
      hovertemplate: "%{y}, " + kind.name + ": %{x:.4~g}<extra></extra>",
    }));
    Plotly.react(box, horizontal, layout({
      barmode: "stack", showlegend: true, legend, xaxis: { title: { text: unit } },
      yaxis: { autorange: "reversed", type: "category" }, margin: { l: 48, r: 12, t: 30, b: 40 }, bargap: 0.25,
    }), settings);
  }

  function strips(box, about) {
    const rows = about.strips.length, more = {}, traces = [];
    about.strips.forEach((strip, i) => {
      const name = i ? "yaxis" + (i + 1) : "yaxis";
      const top = 1 - i / rows, low = 1 - (i + 0.86) / rows;
      more[name] = { domain: [low, top], range: [0, 1], showticklabels: false, showgrid: false, zeroline: false, title: { text: String(about.workers[i]), standoff: 4 }, fixedrange: true };
      data.kinds.forEach((kind, k) => traces.push({
        type: "bar", name: kind, legendgroup: kind, showlegend: i === 0, yaxis: i ? "y" + (i + 1) : "y", offset: 0, width: strip.lasts, x: strip.begins, y: strip.shares[k],
        marker: { color: data.kindColours[k], line: { width: 0 } }, hovertemplate: "worker " + about.workers[i] + ", " + kind + ": %{y:.0%}<extra></extra>",
      }));
    });
    Plotly.react(box, traces, layout({
      ...more, barmode: "stack", bargap: 0, showlegend: true, legend,
      xaxis: { title: { text: about.clock }, anchor: "y" + (rows > 1 ? rows : "") }, margin: { l: 36, r: 12, t: 30, b: 40 },
    }), settings);
  }

  // How each plot is drawn, by its id. Those in closed sections and of hidden choices are drawn when they appear.
  const drawers = {};
  for (const plot of data.plots) drawers[plot.id] = () => curve(plot);
  for (const about of data.accounts) {
    if (!about.detailed) continue;
    const kinds = data.kinds.map((name, k) => ({ name, values: about.totals.map((row) => row[k]) }));
    drawers[about.id + "-bars"] = () => bars(about.id + "-bars", about.workers.map((w) => "worker " + w), kinds, data.kindColours, about.clock);
    drawers[about.id + "-strips"] = () => strips(about.id + "-strips", about);
  }
  if (data.accounts.length > 1)
    drawers["time-all"] = () => {
      const kept = data.accounts.filter((about) => shown[about.choice]);
      const kinds = data.kinds.map((name, k) => ({ name, values: kept.map((about) => about.mean[k]) }));
      const lines = Math.max(1, ...kept.map((about) => wrapped(about.name).split("<br>").length));
      document.getElementById("time-all").style.height = Math.min(60, Math.max(12, 7 + kept.length * Math.max(1.9, 1.1 * lines))) + "rem";
      bars("time-all", kept.map((about) => wrapped(about.name)), kinds, data.kindColours, data.accounts[0].clock + " per worker");
    };
  for (const about of data.classes) {
    const classes = about.counts[0].map((_, c) => ({ name: "class " + c, values: about.counts.map((row) => row[c]) }));
    drawers[about.id] = () => bars(about.id, about.counts.map((_, w) => "worker " + w), classes, data.classColours, "examples");
  }
  const show = (id) => { if (document.getElementById(id).offsetParent) drawers[id](); };
  const all = () => Object.keys(drawers).forEach(show);
  const some = (ids) => ids.forEach(show);

  const each = (selector, act) => document.querySelectorAll(selector).forEach(act);
  function choose() {
    const count = shown.filter(Boolean).length;
    each("[data-choice]", (part) => (part.hidden = shown[part.dataset.choice] === false));
    each("[data-show]", (button) => button.setAttribute("aria-pressed", shown[button.dataset.show]));
    each("[data-only]", (button) => button.setAttribute("aria-pressed", count === 1 && shown[button.dataset.only]));
    all();
  }
  each("[data-show]", (button) => (button.onclick = () => { shown[button.dataset.show] = !shown[button.dataset.show]; choose(); }));
  each("[data-only]", (button) => (button.onclick = () => {
    const back = button.getAttribute("aria-pressed") === "true";
    shown.forEach((_, k) => (shown[k] = back || k === Number(button.dataset.only)));
    choose();
  }));
  each("[data-log]", (button) => (button.onclick = () => {
    const id = button.dataset.log;
    logged.delete(id) || logged.add(id);
    button.setAttribute("aria-pressed", logged.has(id));
    show(id);
  }));
  each("[data-save]", (button) => (button.onclick = () => {
    const box = document.getElementById(button.dataset.save), title = button.closest(".card").querySelector("h3").textContent;
    const paper = { ...box.layout, paper_bgcolor: css("--card"), title: { text: title.replaceAll("&", "&amp;") }, margin: { ...box.layout.margin, t: 60 } };
    Plotly.downloadImage({ data: box.data, layout: paper }, { format: button.dataset.kind, filename: title, width: box.clientWidth, height: box.clientHeight + 40, scale: 2 });
  }));
  const curves = data.plots.map((plot) => plot.id);
  document.getElementById("axis").onchange = (event) => { axis = event.target.value; some(curves); };
  document.getElementById("smooth").onchange = (event) => { smoothing = Number(event.target.value); some(curves); };
  each("details", (part) => part.addEventListener("toggle", () => { if (part.open) some([...part.querySelectorAll(".plot")].map((box) => box.id)); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  // A browser may keep what was selected before a reload.
  axis = document.getElementById("axis").value;
  smoothing = Number(document.getElementById("smooth").value);
  all();
  document.body.dataset.drawn = data.plots.length;
}

// Plotly is stored compressed: uncompressed it is 5 MB.
async function decompress() {
  const compressed = document.getElementById("library").textContent;
  const bytes = Uint8Array.from(atob(compressed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

decompress().then(draw).catch((error) => {
  document.body.dataset.failed = error;
  document.getElementById("error").hidden = false;
  document.getElementById("error").textContent = "This browser cannot draw the curves: " + error;
});
