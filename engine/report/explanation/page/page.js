"use strict";
(() => {
  performance.mark("begun");
  const ROW = 78, WIDE = 146, HIGH = 42;
  const one = (selector) => document.querySelector(selector);
  const data = JSON.parse(one("#data").textContent);
  const canvas = one("#canvas"), overview = one("#overview");
  const pen = canvas.getContext("2d"), small = overview.getContext("2d");
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  const LIGHT = ["#3b6fd4", "#d9822b", "#2e9a63", "#b5458f", "#7a6bd1", "#1798a8", "#a8852a", "#c94f4f", "#6b7688"];
  const DARK = ["#6c9bf2", "#eba25a", "#5cc78e", "#dd7abb", "#a598f0", "#4fc3d1", "#d3b25b", "#ee8484", "#93a0b4"];
  const theme = {};
  let graph, view, chosen = -1, found = new Set(), colouring, colours, isPending = false, isFirst = true, filled = "";

  // ---------------------------------------------------------------------------- elements

  function make(tag, text = "", name = "") {
    const element = document.createElement(tag);
    if (text !== "") element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["back", "panel", "text", "dim", "line", "edge", "mark", "box"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    theme.colours = isDark.matches ? DARK : LIGHT;
  }

  // ------------------------------------------------------------------------------ numbers

  function amount(value, unit) {
    if (value === null) return "unknown";
    for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (value >= factor) return `${(value / factor).toPrecision(3)} ${prefix}${unit}`;
    }
    return `${value} ${unit}`;
  }

  function time(seconds) {
    if (seconds === null) return "unknown";
    for (const [factor, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
      if (seconds >= factor) return `${(seconds / factor).toPrecision(3)} ${unit}`;
    }
    return `${(seconds / 1e-9).toPrecision(3)} ns`;
  }

  // -------------------------------------------------------------------------------- graph

  function prepare(given) {
    const count = given.x.length;
    const layers = Math.max(-1, ...given.layer) + 1;
    const rows = Array.from({ length: layers }, () => []);
    for (let node = 0; node < count; node += 1) rows[given.layer[node]].push(node);
    const left = Math.min(...given.x) - WIDE, right = Math.max(...given.x) + WIDE;
    const leaving = Array.from({ length: layers }, () => []);
    const arrows = given.arrows.map(([from, to, ...through]) => {
      const isLong = through[0] === null;
      const xs = [given.x[from], ...(isLong ? [] : through), given.x[to]];
      return { from, to, isLong, xs, first: given.layer[from], last: given.layer[to] };
    });
    let span = 1;
    const touching = Array.from({ length: count }, () => []);
    for (const arrow of arrows) {
      leaving[arrow.first].push(arrow);
      touching[arrow.from].push(arrow);
      touching[arrow.to].push(arrow);
      if (!arrow.isLong) span = Math.max(span, arrow.last - arrow.first);
    }
    const height = Math.max(layers, 1) * ROW;
    return { ...given, count, rows, left, right, leaving, touching, span, height, width: right - left };
  }

  const isNode = (node) => graph.kind[node] === 0;

  // ------------------------------------------------------------------------------ colours

  function colourings() {
    const kinds = [["operator", "operator"]];
    if (graph.hasTime) kinds.push(["time", "measured time"]);
    if (graph.hasRoof) kinds.push(["roof", "least time (roof)"]);
    kinds.push(["place", "where it runs"]);
    if (graph.segments.length) kinds.push(["segment", "segment"]);
    kinds.push(["state", "state"]);
    return kinds;
  }

  function ramp(share) {
    const hue = 52 - 52 * share;
    return isDark.matches ? `hsl(${hue} ${55 + 35 * share}% ${28 + 30 * share}%)` : `hsl(${hue} ${60 + 30 * share}% ${88 - 40 * share}%)`;
  }

  function paint() {
    const legend = [], by = colouring, palette = theme.colours;
    const cell = (index) => palette[index % (palette.length - 1)];
    const numbers = by === "time" ? graph.time : graph.roof;
    colours = new Array(graph.count).fill(theme.dim);
    if (by === "time" || by === "roof") {
      let most = 0;
      for (const value of numbers) if (value > most) most = value;
      for (let node = 0; node < graph.count; node += 1) {
        if (numbers[node] !== null && isNode(node)) colours[node] = ramp(most ? Math.sqrt(numbers[node] / most) : 0);
      }
      legend.push({ ramp: true, text: `0 to ${time(most)}` }, { colour: theme.dim, text: "no time of its own" });
    } else {
      const names = { operator: data.families, place: graph.places, segment: graph.segments, state: data.states }[by];
      const values = { operator: graph.family, place: graph.place, segment: graph.segment, state: graph.state }[by];
      const counts = new Map();
      for (let node = 0; node < graph.count; node += 1) {
        if (!isNode(node)) continue;
        colours[node] = cell(values[node]);
        counts.set(values[node], (counts.get(values[node]) || 0) + 1);
      }
      const sorted = [...counts].sort((a, b) => (by === "segment" ? a[0] - b[0] : b[1] - a[1]));
      for (const [value, count] of sorted.slice(0, 9)) {
        legend.push({ colour: cell(value), text: `${names[value]} (${count.toLocaleString("en")})` });
      }
      if (sorted.length > 9) legend.push({ text: `and ${sorted.length - 9} more` });
    }
    if (graph.state.some((state, node) => state && isNode(node))) legend.push({ dashed: true, text: "no kernel of its own" });
    const list = one("#legend");
    list.replaceChildren(...legend.map((entry) => {
      const item = make("li");
      const mark = make("span", "", entry.ramp ? "ramp" : entry.dashed ? "swatch dashed" : "swatch");
      if (entry.ramp) mark.style.background = `linear-gradient(90deg, ${ramp(0)}, ${ramp(0.5)}, ${ramp(1)})`;
      else if (entry.colour) mark.style.background = entry.colour;
      item.append(mark, make("span", entry.text));
      return item;
    }));
    drawOverview();
  }

  // ------------------------------------------------------------------------------ drawing

  function size(element, context) {
    const box = element.getBoundingClientRect(), scale = devicePixelRatio || 1;
    element.width = Math.max(1, Math.round(box.width * scale));
    element.height = Math.max(1, Math.round(box.height * scale));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    return box;
  }

  function redraw() {
    if (isPending) return;
    isPending = true;
    requestAnimationFrame(() => { isPending = false; draw(); });
  }

  function trace(arrow) {
    const { xs, first } = arrow, rows = arrow.isLong ? arrow.last - first : 1;
    let x = xs[0], y = first * ROW + HIGH / 2;
    pen.moveTo(x, y);
    for (let step = 1; step < xs.length; step += 1) {
      const isEnd = step === xs.length - 1;
      const nextY = (first + step * rows) * ROW - (isEnd ? HIGH / 2 : 0), nextX = xs[step];
      const middle = (y + nextY) / 2;
      if (arrow.isLong) pen.bezierCurveTo(x + 140, y + ROW, nextX + 140, nextY - ROW, nextX, nextY);
      else if (x === nextX || view.k < 0.2) pen.lineTo(nextX, nextY);
      else pen.bezierCurveTo(x, middle, nextX, middle, nextX, nextY);
      x = nextX; y = nextY;
    }
  }

  function stub(arrow) {
    pen.moveTo(arrow.xs[0], arrow.first * ROW + HIGH / 2);
    pen.lineTo(arrow.xs[0] + 9, arrow.first * ROW + HIGH / 2 + 11);
    pen.moveTo(arrow.xs[1], arrow.last * ROW - HIGH / 2);
    pen.lineTo(arrow.xs[1] - 9, arrow.last * ROW - HIGH / 2 - 11);
  }

  function draw() {
    const { width, height } = canvas.getBoundingClientRect(), { k } = view;
    pen.save();
    pen.fillStyle = theme.back;
    pen.fillRect(0, 0, width, height);
    pen.translate(view.x, view.y);
    pen.scale(k, k);
    const x0 = -view.x / k - WIDE, x1 = (width - view.x) / k + WIDE;
    const top = Math.max(0, Math.floor(-view.y / k / ROW) - 1);
    const end = Math.min(graph.rows.length - 1, Math.ceil((height - view.y) / k / ROW) + 1);
    pen.strokeStyle = theme.edge;
    pen.lineWidth = Math.max(1, 0.6 / k);
    pen.beginPath();
    // So far away that layers lie within 3 pixels, the boxes cover the arrows.
    for (let row = Math.max(0, top - graph.span); row <= end && ROW * k > 3; row += 1) {
      for (const arrow of graph.leaving[row]) {
        if (arrow.isLong) { if (k > 0.25) stub(arrow); } else if (arrow.last >= top) trace(arrow);
      }
    }
    pen.stroke();
    if (chosen >= 0) {
      pen.strokeStyle = theme.mark;
      pen.lineWidth = Math.max(2, 1.4 / k);
      pen.beginPath();
      for (const arrow of graph.touching[chosen]) trace(arrow);
      pen.stroke();
    }
    const isText = k > 0.42, shown = [];
    filled = "";
    for (let row = top; row <= end; row += 1) {
      for (const node of graph.rows[row]) {
        const x = graph.x[node];
        if (x < x0 || x > x1) continue;
        box(node, x, row * ROW, k);
        if (isText) shown.push([node, x, row * ROW]);
      }
    }
    if (isText) words(shown);
    pen.restore();
    drawView(width, height);
    if (isFirst) {
      isFirst = false;
      performance.measure("first drawing", "begun");
    }
  }

  function box(node, x, y, k) {
    const w = WIDE, left = x - w / 2, above = y - HIGH / 2;
    if (k < 0.2) {
      const colour = node === chosen || found.has(node) ? theme.mark : isNode(node) ? colours[node] : theme.edge;
      if (colour !== filled) pen.fillStyle = filled = colour;
      pen.fillRect(left, above, w, HIGH);
      return;
    }
    pen.beginPath();
    pen.roundRect(left, above, w, HIGH, isNode(node) ? 7 : 21);
    pen.fillStyle = theme.box;
    pen.fill();
    const isTimed = colouring === "time" || colouring === "roof";
    pen.globalAlpha = isNode(node) ? (isTimed ? 1 : graph.state[node] ? 0.13 : 0.26) : 0.1;
    if (isNode(node) || !isTimed) {
      pen.fillStyle = colours[node];
      if (!(isTimed && colours[node] === theme.dim)) pen.fill();
    }
    pen.globalAlpha = 1;
    const isMarked = node === chosen || found.has(node);
    pen.strokeStyle = isMarked ? theme.mark : colours[node];
    pen.lineWidth = isMarked ? 3.5 : 1.6;
    pen.setLineDash(isNode(node) && graph.state[node] ? [5, 4] : []);
    pen.stroke();
    pen.setLineDash([]);
  }

  function cut(text, most) {
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
  }

  function words(shown) {
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const isHot = colouring === "time" || colouring === "roof";
    for (const [font, colour, line] of [["600 14px system-ui, sans-serif", theme.text, 0], ["11px system-ui, sans-serif", theme.dim, 1]]) {
      pen.font = font;
      for (const [node, x, y] of shown) {
        const onRamp = isHot && colours[node] !== theme.dim && isNode(node);
        pen.fillStyle = onRamp ? (isDark.matches ? "#fff" : "#111") : colour;
        const text = line ? graph.under[node] : graph.label[node];
        pen.fillText(cut(text, line ? 26 : 18), x, y + (line ? 10 : -7), WIDE - 10);
      }
    }
  }

  // ----------------------------------------------------------------------------- overview

  let picture = null;

  function drawOverview() {
    const isLarge = graph.height * 0.42 > canvas.getBoundingClientRect().height || graph.width * 0.42 > canvas.getBoundingClientRect().width;
    overview.hidden = !isLarge;
    if (!isLarge) return;
    const { width, height } = size(overview, small);
    picture = document.createElement("canvas");
    picture.width = overview.width;
    picture.height = overview.height;
    const context = picture.getContext("2d");
    context.scale(overview.width / width, overview.height / height);
    const kx = (width - 12) / graph.width, ky = (height - 12) / graph.height;
    for (let node = 0; node < graph.count; node += 1) {
      context.fillStyle = found.has(node) ? theme.mark : isNode(node) ? colours[node] : theme.edge;
      const w = Math.max(found.has(node) ? 6 : 3, WIDE * kx), h = Math.max(1.2, HIGH * ky);
      context.fillRect(6 + (graph.x[node] - graph.left) * kx - w / 2, 6 + (graph.layer[node] * ROW + ROW / 2) * ky - h / 2, w, h);
    }
  }

  function drawView(width, height) {
    if (overview.hidden || !picture) return;
    const box = overview.getBoundingClientRect();
    const kx = (box.width - 12) / graph.width, ky = (box.height - 12) / graph.height;
    small.save();
    small.setTransform(1, 0, 0, 1, 0, 0);
    small.clearRect(0, 0, overview.width, overview.height);
    small.drawImage(picture, 0, 0);
    small.restore();
    const clamp = (value, most) => Math.min(Math.max(value, 1), most - 1);
    const left = clamp(6 + (-view.x / view.k - graph.left) * kx, box.width);
    const right = clamp(6 + ((width - view.x) / view.k - graph.left) * kx, box.width);
    const top = clamp(6 + (-view.y / view.k + ROW / 2) * ky, box.height);
    const bottom = clamp(6 + ((height - view.y) / view.k + ROW / 2) * ky, box.height);
    small.strokeStyle = theme.mark;
    small.lineWidth = 1.5;
    small.strokeRect(left, top, Math.max(right - left, 3), Math.max(bottom - top, 3));
  }

  // ------------------------------------------------------------------------------- moving

  function zoom(factor, x, y) {
    const k = Math.min(Math.max(view.k * factor, 0.004), 3);
    view.x = x - (x - view.x) * (k / view.k);
    view.y = y - (y - view.y) * (k / view.k);
    view.k = k;
    redraw();
  }

  function middle() {
    const { width, height } = canvas.getBoundingClientRect();
    return [width / 2, height / 2];
  }

  function fit() {
    const { width, height } = canvas.getBoundingClientRect();
    const room = width - (overview.hidden ? 20 : 110);
    const k = Math.min(room / graph.width, (height - 20) / graph.height, 1.2);
    view = { k, x: room / 2 + 10 - (graph.left + graph.width / 2) * k, y: (height - graph.height * k) / 2 + (ROW / 2) * k };
    redraw();
  }

  function begin() {
    // A graph that would be too small to read as a whole is shown from its inputs on.
    fit();
    if (view.k >= 0.42) return;
    const { width } = canvas.getBoundingClientRect();
    const xs = graph.rows.slice(0, 12).flat().map((node) => graph.x[node]);
    const left = Math.min(...xs), right = Math.max(...xs);
    const k = Math.min(Math.max((width - 110) / (right - left + 1.5 * WIDE), 0.5), 0.9);
    view = { k, x: (width - 90) / 2 - ((left + right) / 2) * k, y: (HIGH + 14) * k };
  }

  function show(node) {
    const { width, height } = canvas.getBoundingClientRect();
    const k = Math.max(view.k, 0.7);
    view = { k, x: width / 2 - graph.x[node] * k, y: height / 2 - graph.layer[node] * ROW * k };
    choose(node);
  }

  function choose(node) {
    chosen = node;
    showDetails();
    redraw();
  }

  function at(clientX, clientY) {
    const box = canvas.getBoundingClientRect();
    const x = (clientX - box.left - view.x) / view.k, y = (clientY - box.top - view.y) / view.k;
    const row = graph.rows[Math.round(y / ROW)] || [];
    if (Math.abs(y - Math.round(y / ROW) * ROW) > HIGH / 2) return -1;
    return row.find((node) => Math.abs(graph.x[node] - x) <= WIDE / 2) ?? -1;
  }

  // -------------------------------------------------------------------------------- panel

  function pairs(entries) {
    const list = make("dl");
    for (const [name, text] of entries) {
      if (text === "" || text === null) continue;
      const value = make("dd");
      value.append(...(Array.isArray(text) ? text : [document.createTextNode(text)]));
      list.append(make("dt", name), value);
    }
    return list;
  }

  function link(text, node) {
    const button = make("button", text, "link");
    button.type = "button";
    button.addEventListener("click", () => show(node));
    return button;
  }

  function heading(text) {
    return make("h2", text);
  }

  function titleOf(node) {
    return graph.name[node] ? `${graph.label[node]} ${graph.name[node]}` : `${graph.label[node]} #${graph.index[node]}`;
  }

  function showDetails() {
    const section = one("#details");
    section.hidden = chosen < 0;
    if (chosen < 0) return;
    const node = chosen, title = heading(isNode(node) ? graph.label[node] : graph.under[node]);
    const close = make("button", "×");
    close.type = "button";
    close.setAttribute("aria-label", "close");
    close.addEventListener("click", () => choose(-1));
    title.append(close);
    const facts = graph.facts[node] || [];
    const into = graph.into[node], others = graph.holds[node] || [];
    const entries = [...facts];
    if (into >= 0) entries.push(["fused into", [link(titleOf(into), into)]]);
    if (others.length) entries.push(["its kernel holds", lined(others.map((other) => link(titleOf(other), other)))]);
    const from = graph.touching[node].filter((arrow) => arrow.to === node);
    const to = graph.touching[node].filter((arrow) => arrow.from === node);
    const ends = (arrows, end) => lined([...new Set(arrows.map((arrow) => arrow[end]))].slice(0, 40).map((other) => link(titleOf(other), other)));
    if (from.length) entries.push(["reads from", ends(from, "from")]);
    if (to.length) entries.push(["is read by", ends(to, "to")]);
    section.replaceChildren(title, pairs(entries));
    if (graph.inside[node]) section.append(table(graph.insideHead, graph.inside[node]));
  }

  function lined(elements) {
    return elements.flatMap((element) => [element, make("br")]).slice(0, -1);
  }

  function showSummary() {
    const section = one("#summary");
    section.replaceChildren(heading("Model"), pairs(graph.model));
    if (graph.operators.length) {
      section.append(heading("Operators"), table(graph.operatorHead, graph.operators));
    }
    if (graph.hottest.length) {
      const list = graph.hottest.map(([node, text]) => {
        const row = make("tr"), cell = make("td"), number = make("td", text, "number");
        cell.append(link(titleOf(node), node));
        row.append(cell, number);
        return row;
      });
      const element = make("table");
      element.append(...list);
      section.append(heading(graph.hasTime ? "The slowest nodes" : "The slowest nodes, at the roof"), element);
    }
  }

  function table(head, rows) {
    const element = make("table"), first = make("tr");
    head.forEach((text, place) => first.append(make("th", text, place ? "number" : "")));
    element.append(first);
    for (const [cells, share] of rows) {
      const row = make("tr");
      cells.forEach((text, place) => row.append(make("td", text, place ? "number" : "")));
      const end = `${Math.round(100 * share)}%`;
      row.style.background = `linear-gradient(90deg, ${theme.colours[0]}44 ${end}, transparent ${end})`;
      element.append(row);
    }
    return element;
  }

  function search() {
    const text = one("#search").value.trim().toLowerCase(), section = one("#results");
    found = new Set();
    const hits = [];
    if (text) {
      for (let node = 0; node < graph.count; node += 1) {
        if (graph.words[node].toLowerCase().includes(text)) {
          found.add(node);
          if (hits.length < 30) hits.push(node);
        }
      }
    }
    section.hidden = !text;
    const count = `${found.size.toLocaleString("en")} found`;
    section.replaceChildren(heading(count), ...hits.map((node) => link(titleOf(node), node)));
    if (found.size > hits.length) section.append(make("p", `the first ${hits.length} of them`, "dim"));
    drawOverview();
    redraw();
    return hits;
  }

  // ------------------------------------------------------------------------------- events

  function options(select, entries) {
    select.replaceChildren(...entries.map(([value, text]) => {
      const option = make("option", text);
      option.value = value;
      return option;
    }));
  }

  function open(place) {
    graph = prepare(data.graphs[place]);
    chosen = -1;
    found = new Set();
    options(one("#colour"), colourings());
    colouring = graph.hasTime ? "time" : "operator";
    one("#colour").value = colouring;
    one("#search").value = "";
    one("#results").hidden = true;
    size(canvas, pen);
    paint();
    begin();
    showDetails();
    showSummary();
    redraw();
  }

  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event);
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const box = canvas.getBoundingClientRect();
    if (pointers.size === 2) {
      const [other] = [...pointers.values()].filter((pointer) => pointer.pointerId !== event.pointerId);
      const span = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY) || 1;
      zoom(span(event) / span(before), (event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top);
      moved += 10;
    } else {
      view.x += event.clientX - before.clientX;
      view.y += event.clientY - before.clientY;
      moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
      redraw();
    }
    pointers.set(event.pointerId, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    pointers.delete(event.pointerId);
    if (moved < 5) choose(at(event.clientX, event.clientY));
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    // A pinch on a touchpad comes as a wheel with Ctrl, in small steps.
    zoom(Math.exp(-event.deltaY / (event.ctrlKey ? 120 : 500)), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 80, moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key]) {
      view.x += moves[event.key][0];
      view.y += moves[event.key][1];
      redraw();
    } else if (event.key === "+" || event.key === "=") zoom(1.25, ...middle());
    else if (event.key === "-") zoom(0.8, ...middle());
    else if (event.key === "0") fit();
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
  });
  const jump = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const box = overview.getBoundingClientRect(), { width, height } = canvas.getBoundingClientRect();
    const x = graph.left + ((event.clientX - box.left - 6) / (box.width - 12)) * graph.width;
    const y = ((event.clientY - box.top - 6) / (box.height - 12)) * graph.height - ROW / 2;
    view.x = width / 2 - x * view.k;
    view.y = height / 2 - y * view.k;
    redraw();
  };
  overview.addEventListener("pointerdown", jump);
  overview.addEventListener("pointermove", jump);
  one("#in").addEventListener("click", () => zoom(1.25, ...middle()));
  one("#out").addEventListener("click", () => zoom(0.8, ...middle()));
  one("#fit").addEventListener("click", fit);
  one("#search").addEventListener("input", search);
  one("#search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const [first] = search();
    if (first !== undefined) show(first);
  });
  one("#colour").addEventListener("change", (event) => { colouring = event.target.value; paint(); redraw(); });
  one("#graph").addEventListener("change", (event) => open(Number(event.target.value)));
  isDark.addEventListener("change", () => { readTheme(); paint(); showSummary(); redraw(); });
  new ResizeObserver(() => { size(canvas, pen); drawOverview(); redraw(); }).observe(one("#drawing"));

  readTheme();
  one("h1").textContent = data.title;
  one("#graph-field").hidden = data.graphs.length < 2;
  options(one("#graph"), data.graphs.map((each, place) => [String(place), String(place)]));
  open(0);
})();
