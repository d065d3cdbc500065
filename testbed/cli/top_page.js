// SPDX-License-Identifier: Apache-2.0
// Draws the updates of `paralet top --serve` (testbed/live/web_update.py). Texts are set as text, never as markup.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const ORDERS = [
    ["rate both ways", (lane) => (lane.tx_bps ?? 0) + (lane.rx_bps ?? 0)],
    ["round trip", (lane) => lane.rtt_s],
    ["resent", (lane) => lane.retransmits],
    ["moves", (lane) => lane.moves],
  ];
  const MOST_ROWS = 200;
  const SPARK_POINTS = 16;
  const megabits = (bps) => (bps === null ? "-" : (bps / 1e6).toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 }));
  const percent = (part) => (part === null ? "-" : `${(100 * part).toFixed(0)} %`);
  const millis = (seconds) => (seconds >= 1 ? `${seconds.toFixed(1)} s` : `${(seconds * 1e3).toFixed(1)} ms`);
  const micros = (seconds) => (seconds ? Math.round(seconds * 1e6).toLocaleString("en") : "-");

  const made = (name, attributes, parent) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    parent?.append(one);
    return one;
  };

  // Rows are kept from update to update, so that a reader's place and selection stay.
  const fill = (body, rows) => {
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((cells, index) => {
      const row = body.rows[index] ?? body.insertRow();
      while (row.cells.length > cells.length) row.deleteCell(-1);
      cells.forEach((cell, column) => {
        const place = row.cells[column] ?? row.insertCell();
        if (cell instanceof Node) place.replaceChildren(cell);
        else if (place.textContent !== String(cell)) place.textContent = cell;
      });
    });
  };
  const table = (id, names, rows) => {
    const [head, body] = [$(id).querySelector("thead"), $(id).querySelector("tbody")];
    if (head.rows.length === 0) fill(head, [names]);
    fill(body, rows);
  };

  const spark = (history, most) => {
    const svg = made("svg", { class: "spark", viewBox: `0 0 ${SPARK_POINTS - 1} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const points = history.map((rate, index) => `${SPARK_POINTS - history.length + index} ${(10 - (9.5 * rate) / (most || 1)).toFixed(2)}`);
    if (points.length > 1) made("path", { d: `M${points.join("L")}`, "vector-effect": "non-scaling-stroke" }, svg);
    return svg;
  };

  // The drawing is made once for a fabric; updates only change the bars.
  let bars = null;
  const drawHeat = ({ leaves, spines, heat }) => {
    const wide = spines.length > 24 ? 10 : 26, high = leaves.length > 24 ? 10 : 22, left = 60, top = 16;
    if (bars === null) {
      const svg = made("svg", { width: left + wide * spines.length, height: top + high * leaves.length,
        viewBox: `0 0 ${left + wide * spines.length} ${top + high * leaves.length}`, role: "img",
        "aria-label": "Load of the links between leaves and spines; the busiest are in the table" }, $("heat"));
      made("text", { x: left, y: 11 }, svg).textContent = `${spines[0]} to ${spines.at(-1)}`;
      bars = new Map(leaves.map((leaf, row) => {
        const y = top + row * high;
        if (high > 12 || row % 8 === 0) made("text", { x: 0, y: y + Math.min(high, 14) }, svg).textContent = leaf;
        return [leaf, spines.map((spine, column) => {
          const x = left + column * wide;
          made("rect", { class: "cell", x, y, width: wide - 1, height: high - 1 }, svg);
          return [0, 1].map((down) => {
            const bar = made("rect", { class: "bar", x: x + 1 + down * (wide / 2 - 1), width: wide / 2 - 2, y, height: 0 }, svg);
            return { bar, title: made("title", {}, bar), name: down ? `${spine} to ${leaf}` : `${leaf} to ${spine}`, y };
          });
        })];
      }));
    }
    for (const [leaf, cells] of Object.entries(heat))
      cells.forEach((pair, column) => pair.forEach((part, down) => {
        const { bar, title, name, y } = bars.get(leaf)[column][down];
        const height = part > 0 ? Math.max(1, Math.min(1, part) * (high - 2)) : 0;
        bar.setAttribute("height", height);
        bar.setAttribute("y", y + high - 1 - height);
        title.textContent = `${name}: ${percent(part)}`;
      }));
  };

  let latest = null, paused = false;
  const draw = () => {
    if (latest === null) return;
    const { totals, fabric, links, lanes, ports, operations, status, log } = latest;
    const [name, of] = ORDERS[$("order").selectedIndex];
    $("head").textContent = `${totals.devices} devices, ${totals.lanes} lanes, ${megabits(totals.tx_bps)} Mbit/s sent; by ${name}; ` +
      `${paused ? "paused" : new Date().toLocaleTimeString()}`;
    $("status").hidden = !status;
    $("status").textContent = status;
    $("fabric").hidden = fabric === null;
    if (fabric !== null) {
      $("advice").textContent = latest.advice;
      drawHeat(fabric);
      fill($("links"), links.map((link) => [link.link, percent(link.utilisation)]));
    }
    $("operations").hidden = operations.length === 0;
    table("operations", ["operation", "ranks seen", "state", "MB sent", "late", "slowest lane", "its flowlet", "mean"],
      operations.map((one) => [one.title, one.seen, `${one.running ? "running" : "done"} ${millis(one.seconds)}`,
        (one.sent_bytes / 1e6).toFixed(1), one.late, one.slowest ? `${one.slowest.lane} to ${one.slowest.peer}, port ${one.slowest.port}` : "",
        one.slowest ? millis(one.slowest.duration_s) : "", one.slowest ? millis(one.flowlet_mean_s) : ""]));
    $("ports").hidden = ports.length === 0;
    table("ports", ["switch", "port", "sent Mbit/s", "received", "of its speed", "drops"],
      ports.map((port) => [port.switch, port.port, megabits(port.tx_bps), megabits(port.rx_bps), percent(port.utilisation), port.drops.toLocaleString("en")]));
    const most = lanes.reduce((so_far, lane) => Math.max(so_far, ...lane.history), 0);
    table("lanes", ["device", "peer", "lane", "port", "over time", "sent Mbit/s", "received", "RTT us", "resent", "moves"],
      [...lanes].sort((a, b) => of(b) - of(a)).slice(0, MOST_ROWS).map((lane) => [
        lane.device_host ?? lane.device, lane.peer_host ?? lane.peer, lane.lane, lane.port, spark(lane.history, most),
        megabits(lane.tx_bps), megabits(lane.rx_bps), micros(lane.rtt_s),
        lane.retransmits.toLocaleString("en"), lane.moves.toLocaleString("en")]));
    $("log").replaceChildren(...log.toReversed().map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  };

  const pause = () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", paused);
    draw();
  };
  for (const [name] of ORDERS) $("order").append(new Option(name));
  $("pause").addEventListener("click", pause);
  $("order").addEventListener("change", draw);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || /BUTTON|SELECT/.test(event.target.tagName)) return;
    if (event.key === " ") pause();
    else if (event.key === "s") { $("order").selectedIndex = ($("order").selectedIndex + 1) % ORDERS.length; draw(); }
    else return;
    event.preventDefault();
  });
  const updates = new EventSource("updates");
  updates.addEventListener("message", ({ data }) => {
    if (paused) return;
    latest = JSON.parse(data);
    draw();
  });
  updates.addEventListener("error", () => { $("head").textContent = "No connection to paralet top; trying again."; });
})();
