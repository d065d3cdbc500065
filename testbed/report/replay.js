// SPDX-License-Identifier: Apache-2.0
// Draws the fabric of every run and the load of its links at the time that a slider chooses. Needs no network.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("replay-data").textContent);
  const slider = document.getElementById("replay-time");
  const shown = document.getElementById("replay-now");
  const play = document.getElementById("replay-play");
  const end = Math.max(...data.runs.map((run) => Math.max(run.completion_s, run.until_s.at(-1) ?? 0)));
  const MOST_LINES = 256; // more links than this are drawn as cells, not as lines
  const PLAY_MS = 8000;

  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  // From pale grey over blue to black, so that load is seen without colour too.
  const colour = (percent) => {
    const part = Math.min(1, Math.max(0, percent / 100));
    return `hsl(215 ${Math.round(20 + 60 * part)}% ${Math.round(88 - 68 * part)}%)`;
  };
  // 0.000336 s is read as 336 us.
  const time = (seconds) => {
    const [unit, one] = [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]].find(([, one]) => seconds >= one) ?? ["s", 1];
    return `${Number((seconds / one).toPrecision(3))} ${unit}`;
  };
  const place = (index, count) => (600 * (index + 0.5)) / count;
  const label = ([low, high, up]) =>
    up ? `${data.lower[low]} to ${data.upper[high]}` : `${data.upper[high]} to ${data.lower[low]}`;

  // The same pair of switches may have several links, side by side.
  const sideways = [];
  const seen = new Map();
  for (const [low, high, up] of data.links) {
    const key = `${low} ${high} ${up}`;
    const before = seen.get(key) ?? 0;
    seen.set(key, before + 1);
    sideways.push((up ? -1.6 : 1.6) * (1 + 2 * before));
  }

  const drawLines = (svg) => {
    const marks = data.links.map(([low, high], index) =>
      element("line", {
        x1: place(low, data.lower.length) + sideways[index], y1: 225,
        x2: place(high, data.upper.length) + sideways[index], y2: 35,
      }, svg));
    for (const [names, y] of [[data.upper, 24], [data.lower, 252]])
      names.forEach((name, index) => {
        element("text", { x: place(index, names.length), y, "text-anchor": "middle" }, svg).textContent = name;
      });
    return (percent) => marks.forEach((mark, index) => {
      mark.setAttribute("stroke", colour(percent[index]));
      mark.setAttribute("stroke-width", 0.6 + percent[index] / 40);
    });
  };
  const drawCells = (svg) => {
    const wide = 600 / data.upper.length, high = 220 / data.lower.length;
    const marks = data.links.map(([low, up, leadsUp]) =>
      element("rect", {
        x: up * wide + (leadsUp ? 0 : wide / 2), y: 30 + low * high, width: wide / 2, height: high * 0.9,
      }, svg));
    element("text", { x: 0, y: 20 }, svg).textContent =
      `${data.lower[0]} to ${data.lower.at(-1)} down, ${data.upper[0]} to ${data.upper.at(-1)} across`;
    return (percent) => marks.forEach((mark, index) => mark.setAttribute("fill", colour(percent[index])));
  };

  const idle = data.links.map(() => 0);
  const panes = data.runs.map((run, index) => {
    const figure = document.querySelector(`[data-run="${index}"]`);
    const svg = element("svg", { viewBox: "0 0 600 260", "aria-hidden": "true" }, figure.querySelector("div"));
    const draw = (data.links.length > MOST_LINES ? drawCells : drawLines)(svg);
    const cells = document.querySelectorAll(`[data-row="${index}"] td`);
    return (now) => {
      const frame = run.until_s.findIndex((until) => until >= now);
      const percent = frame < 0 ? idle : run.percent[frame];
      draw(percent);
      let hottest = 0;
      percent.forEach((value, link) => { if (value > percent[hottest]) hottest = link; });
      const mean = percent.reduce((sum, value) => sum + value, 0) / Math.max(1, percent.length);
      const texts = now > run.completion_s
        ? [run.name, `done at ${time(run.completion_s)}`, "-", "-", "-"]
        : [run.name, "running", `${mean.toFixed(0)} %`, label(data.links[hottest]), `${percent[hottest]} %`];
      cells.forEach((cell, column) => { cell.textContent = texts[column]; });
    };
  });

  const show = () => {
    const now = (end * slider.value) / slider.max;
    shown.textContent = time(now);
    slider.setAttribute("aria-valuetext", shown.textContent);
    for (const pane of panes) pane(now);
  };
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + (slider.max * 100) / PLAY_MS;
      show();
      if (Number(slider.value) >= Number(slider.max)) stop();
    }, 100);
  });
  slider.addEventListener("input", () => { stop(); show(); });
  const asked = /^#at=([0-9.]+)$/.exec(location.hash); // report.html#at=1.5 opens at 1.5 s
  slider.value = asked ? (slider.max * Number(asked[1])) / end : slider.max / 4;
  document.getElementById("replay").hidden = false;
  show();
})();
