"use strict";
// Draws the data in #data with Plotly. One control selects the x-axis of all curves; each run has a button that hides it.
function draw() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (run) => data.colours[run % data.colours.length];
  const shown = data.runs.map(() => true);
  let axis = data.first;
  let logarithmic = false;
  const narrow = () => window.innerWidth < 640;
  const settings = { responsive: true, displayModeBar: false };

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

  function trace(line) {
    const stream = data.runs[line.run].streams[line.stream];
    const base = { x: stream[axis] || [], y: line.y, name: line.name, visible: shown[line.run], connectgaps: true };
    const ink = colour(line.run);
    if (line.style === "low" || line.style === "high") {
      const fill = line.style === "high" ? { fill: "tonexty", fillcolor: ink + "26" } : {};
      return { ...base, ...fill, mode: "lines", line: { width: 0, color: ink }, hoverinfo: "skip" };
    }
    if (line.style === "points") return { ...base, mode: "markers", marker: { color: ink, size: 4, opacity: 0.55 } };
    const few = line.y.length <= 60;
    return { ...base, mode: few ? "lines+markers" : "lines", line: { color: ink, dash: line.style, width: 2 }, marker: { size: 4 } };
  }

  function curves() {
    const title = data.axes.find((a) => a.key === axis).label;
    for (const plot of data.plots) {
      const more = { xaxis: { title: { text: title }, rangemode: "tozero" }, yaxis: {} };
      if (logarithmic || plot.log) more.yaxis.type = "log";
      if (plot.zero && !logarithmic) more.yaxis.rangemode = "tozero";
      if (plot.reference !== undefined)
        more.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: plot.reference, y1: plot.reference, line: { dash: "dot", width: 1, color: css("--soft") } }];
      Plotly.react(plot.id, plot.lines.map(trace), layout(more), settings);
    }
  }

  function bars(box, labels, kinds, colours, unit) {
    const horizontal = kinds.map((kind, k) => ({
      type: "bar", orientation: "h", name: kind.name, y: labels, x: kind.values, marker: { color: colours[k % colours.length] },
      hovertemplate: "%{y}, " + kind.name + ": %{x:.4~g}<extra></extra>",
    }));
    Plotly.react(box, horizontal, layout({
      barmode: "stack", showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { title: { text: unit } }, yaxis: { autorange: "reversed", type: "category" }, margin: { l: 48, r: 12, t: 30, b: 40 }, bargap: 0.25,
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
      ...more, barmode: "stack", bargap: 0, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { title: { text: about.clock }, anchor: "y" + (rows > 1 ? rows : "") }, margin: { l: 36, r: 12, t: 30, b: 40 },
    }), settings);
  }

  function pictures() {
    for (const about of data.accounts) {
      if (about.detailed) bars(about.id + "-bars", about.workers.map((w) => "worker " + w), data.kinds.map((name, k) => ({ name, values: about.totals.map((row) => row[k]) })), data.kindColours, about.clock);
      if (about.detailed) strips(about.id + "-strips", about);
    }
    if (data.accounts.length > 1) {
      const mean = (about, k) => about.totals.reduce((sum, row) => sum + row[k], 0) / about.totals.length;
      bars("time-all", data.accounts.map((about) => about.name), data.kinds.map((name, k) => ({ name, values: data.accounts.map((about) => mean(about, k)) })), data.kindColours, "seconds per worker");
    }
    for (const about of data.classes) {
      const classes = about.counts[0].map((_, c) => ({ name: "class " + c, values: about.counts.map((row) => row[c]) }));
      bars(about.id, about.counts.map((_, w) => "worker " + w), classes, data.classColours, "examples");
    }
  }

  function press(box, pressed) {
    [...box.children].forEach((button, i) => button.setAttribute("aria-pressed", pressed(i)));
  }
  const axes = document.getElementById("axes"), runs = document.getElementById("runs"), scale = document.getElementById("scale");
  [...axes.children].forEach((button, i) => (button.onclick = () => { axis = data.axes[i].key; press(axes, (j) => j === i); curves(); }));
  [...runs.children].forEach((button, i) => (button.onclick = () => { shown[i] = !shown[i]; press(runs, (j) => shown[j]); curves(); }));
  scale.onclick = () => { logarithmic = !logarithmic; scale.setAttribute("aria-pressed", logarithmic); curves(); };
  const all = () => { curves(); pictures(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
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
