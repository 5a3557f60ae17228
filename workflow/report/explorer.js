"use strict";

/* Two runs side by side. What a run holds is said in workflow/scripts/collapse/explorer.py, at run_data. Whatever comes
   from data reaches the page as textContent or as an attribute's value, never as markup, and never as plotly's text,
   which takes <b> and <a> for its own. */
const explorer = (() => {
  const STEP_MS = 600;
  const MOVE_MS = 280;
  // Pixels of a side of a picture on paper, as the stylesheet has them.
  const PRINTED = 330;
  const NO_LABEL = -2;
  const NOISE = -1;
  const SVG = "http://www.w3.org/2000/svg";

  const byId = (id) => document.getElementById(id);
  const index = JSON.parse(byId("index").textContent);
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const view = { method: null, rule: null, colour: null, axes: null, step: 0, playing: null };
  // What is marked: a token of one side; `held` stays when the pointer leaves.
  let mark = null;
  let held = null;
  // Who clicked goes on with the layer: the keys are left to a control only where it was reached by them.
  let byPointer = false;

  const loaded = new Map();
  const waiting = new Map();

  const sides = ["left", "right"].map((name) => {
    const root = byId(name);
    const find = (selector) => root.querySelector(selector);
    return {
      name, run: null, wanted: null, frame: 0,
      plot: find(".plot"), status: find(".status"), reason: find(".reason"), isDrawn: false, following: false,
      // Where points are seen, on their way (`moving`) or there; what marks one of them.
      shown: [], moving: null, ring: find(".ring"), tip: find(".tip"),
      // `heard` is what a screen reader says of the word that the keys reached.
      text: find(".words"), words: [], active: 0, heard: find(".heard"),
      pick: Object.fromEntries(["model", "weights", "prompt"].map((key) => [key, find(`[data-key=${key}]`)])),
    };
  });
  const [left, right] = sides;
  const isReady = () => sides.every((side) => side.run);
  const chosen = ({ pick }) => [pick.model, pick.weights, pick.prompt].map((list) => list.value).join("/");
  const other = (side) => (side === left ? right : left);

  /* Runs: in the page, or in a file of their own that is loaded as a script. */

  function decoded(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return new Int16Array(bytes.buffer);
  }

  function add(name, run) {
    for (const rule of Object.values(run.rules)) {
      for (const method of Object.values(rule.methods)) method.xy = decoded(method.xy);
      if (rule.labels) rule.labels.values = decoded(rule.labels.values);
    }
    run.spelt = spelling(run.text, run.kind);
    loaded.set(name, run);
  }

  function load(name) {
    if (loaded.has(name)) return Promise.resolve(loaded.get(name));
    const embedded = document.querySelector(`script[data-run="${name}"]`);
    if (embedded) {
      add(name, JSON.parse(embedded.textContent));
      return load(name);
    }
    if (!waiting.has(name)) {
      waiting.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = `${index.folder}/${name}.js`;
        const refuse = (why) => {
          waiting.delete(name);
          script.remove();
          reject(new Error(`${script.src} ${why}`));
        };
        script.onerror = () => refuse(`cannot be read: keep the folder ${index.folder} beside this page.`);
        // A file that is cut short is loaded all the same.
        script.onload = () => {
          if (loaded.has(name)) resolve(loaded.get(name));
          else refuse("does not hold its run: copy it again, or delete this page and run again.");
        };
        document.head.append(script);
      }));
    }
    return waiting.get(name);
  }

  /* Tokens of one text under two tokenizers meet where they share a character. */

  function spelling(text, kind) {
    const special = index.looks.kinds.findIndex(([name]) => name === "special");
    let all = "";
    const ends = text.map((token, n) => {
      // Some tokenizers drop capitals and accents.
      const plain = token.replace(/^##/, "").normalize("NFD").replace(/[\s\p{M}]/gu, "").toLowerCase();
      all += kind[n] === special ? "" : plain;
      return all.length;
    });
    return { all, ends };
  }

  function counterpart(position, from, to) {
    if (from.text.length === to.text.length && from.text.every((token, n) => token === to.text[n])) return position;
    const start = position ? from.spelt.ends[position - 1] : 0;
    const end = from.spelt.ends[position];
    if (start === end || to.spelt.all.slice(0, end) !== from.spelt.all.slice(0, end)) return null;
    const found = to.spelt.ends.findIndex((reached) => reached > start);
    return found < 0 ? null : found;
  }

  /* Steps: the layers of the side that has more of them, and one more for states after a final norm, if there are any.
     The other side shows its nearest depth. */

  const ruleOf = (side) => side.run.rules[view.rule];
  const methodOf = (side) => ruleOf(side).methods[view.method];
  const framesOf = (side) => methodOf(side).frames;
  const statesOf = (side) => framesOf(side).map(({ state }) => side.run.states[state]);
  const isAfterNorm = ([, stage]) => stage === "final_norm";
  const hasNorm = (side) => statesOf(side).some(isAfterNorm);
  const depthsOf = (side) => statesOf(side).filter((state) => !isAfterNorm(state)).map(([, , depth]) => depth);
  const leader = () => (depthsOf(right).length > depthsOf(left).length ? right : left);
  const lastStep = () => depthsOf(leader()).length - 1 + (sides.some(hasNorm) ? 1 : 0);

  function placeOf(step) {
    const depths = depthsOf(leader());
    return { depth: depths[step] ?? depths.at(-1), afterNorm: step === depths.length };
  }

  function nearest(depths, depth) {
    const away = depths.map((own) => Math.abs(own - depth));
    return away.indexOf(Math.min(...away));
  }

  function stepOf({ depth, afterNorm }) {
    return afterNorm ? lastStep() : nearest(depthsOf(leader()), depth);
  }

  // The state after the norm is the last of its side.
  function frameAt(side, { depth, afterNorm }) {
    return afterNorm && hasNorm(side) ? framesOf(side).length - 1 : nearest(depthsOf(side), depth);
  }

  function words(side) {
    const [layer, stage] = statesOf(side)[side.frame];
    const { blocks, trained } = side.run;
    if (stage === "final_norm") return "After the final norm";
    const name = stage === "embedding" ? `Embedding, layer 0 of ${blocks}` : `Layer ${layer} of ${blocks}`;
    const lacks = placeOf(view.step).afterNorm ? " (no final norm)" : "";
    return name + lacks + (layer > trained ? `, trained to ${trained}` : "");
  }

  /* Numbers in words. */

  function short(value) {
    return Number.isInteger(value) || Math.abs(value) >= 1000 ? String(Math.round(value)) : value.toPrecision(3);
  }

  const percent = (share) => `${Math.round(100 * share)} %`;
  const visible = (token) => `“${token.replace(/\n/g, "↵").replace(/\t/g, "→")}”`;

  function labelsOf(side) {
    const { labels, positions } = ruleOf(side);
    if (!labels) return null;
    const start = framesOf(side)[side.frame].state * positions.length;
    return labels.values.subarray(start, start + positions.length);
  }

  function describe(side) {
    const frame = framesOf(side)[side.frame];
    const said = [];
    const labels = labelsOf(side);
    if (labels) {
      const { undefined: reasons, alone } = ruleOf(side).labels;
      if (frame.state in reasons) {
        said.push(`clusters undefined: ${reasons[frame.state]}`);
      } else {
        const count = new Set(labels.filter((label) => label >= 0)).size;
        const noise = labels.filter((label) => label === NOISE).length / labels.length;
        said.push(`${count} cluster${count === 1 ? "" : "s"}, ${percent(noise)} noise`);
        if (frame.state in alone) said.push(meanInnerProduct(alone[frame.state]));
      }
    }
    if (frame.variance !== null) said.push(`${percent(frame.variance)} of the variance shown`);
    if (frame.neighbourhood !== null) {
      const size = short(frame.neighbourhood);
      said.push(view.method === "tsne" ? `perplexity ${size}` : `${size} neighbours`);
    }
    const { text, whole } = side.run;
    if (whole !== null) said.push(`prompt cut to ${text.length} of ${whole} tokens`);
    return said.join(" · ");
  }

  const meanInnerProduct = (value) => `mean inner product ${value === null ? "undefined" : short(value)}`;

  /* Looks of points: colour, shape, and what stands for them under the words. */

  function looks(side) {
    const { positions } = ruleOf(side);
    const labels = labelsOf(side);
    const { clusters, noise, unknown, kinds } = index.looks;
    const last = side.run.text.length - 1;
    return positions.map((position, n) => {
      if (view.colour === "position") return { colour: along(last ? position / last : 0), shape: "circle" };
      if (view.colour === "kind") {
        const [, colour, shape] = kinds[side.run.kind[position]];
        return { colour, shape };
      }
      if (labels[n] === NOISE) return { colour: noise, shape: "x-thin", isNoise: true };
      if (labels[n] === NO_LABEL) return { colour: unknown, shape: "circle" };
      const [colour, shape] = clusters[labels[n] % clusters.length];
      return { colour, shape };
    });
  }

  // Cividis at its ends and between: dark to light, the same to colour-blind readers.
  const CIVIDIS = [[0, 34, 78], [65, 77, 107], [124, 123, 120], [188, 175, 111], [254, 232, 56]];

  function along(share) {
    const place = share * (CIVIDIS.length - 1);
    const n = Math.min(Math.floor(place), CIVIDIS.length - 2);
    return `rgb(${CIVIDIS[n].map((low, c) => Math.round(low + (place - n) * (CIVIDIS[n + 1][c] - low))).join(",")})`;
  }

  function markerOf(side) {
    const all = looks(side);
    return {
      color: all.map((look) => look.colour),
      symbol: all.map((look) => look.shape),
      size: all.map((look) => (look.isNoise ? 6 : 8)),
      opacity: 0.9,
      // Yellow alone is not seen on white.
      line: {
        color: all.map((look) => (look.isNoise ? look.colour : "#333")),
        width: all.map((look) => (look.isNoise ? 1.2 : 0.6)),
      },
    };
  }

  /* The plot. */

  function target(side) {
    const { xy, unit, frames } = methodOf(side);
    const { picture } = frames[side.frame];
    const n = ruleOf(side).positions.length;
    if (picture === null) return [[], []];
    const axis = (first) => Array.from({ length: n }, (_, k) => unit * xy[2 * (picture * n + k) + first]);
    return [axis(0), axis(1)];
  }

  function ranges(side) {
    const boxes = (view.axes === "shared" ? sides : [side]).map((one) => methodOf(one).box);
    return [0, 1].map((axis) => {
      const low = Math.min(...boxes.map((box) => box[axis][0]));
      const high = Math.max(...boxes.map((box) => box[axis][1]));
      const room = 0.05 * Math.max(...boxes.flat().map(([a, b]) => b - a)) || 1;
      return [low - room, high + room];
    });
  }

  function draw(side) {
    const [x, y] = ranges(side);
    const axis = {
      zeroline: false, gridcolor: "#ececf0", tickfont: { size: 10, color: "#6b6b72" }, nticks: 6, ticks: "",
      showticklabels: view.method === "pca",
    };
    side.shown = target(side);
    side.moving = null;
    const points = {
      type: "scatter", mode: "markers", hoverinfo: "none", x: side.shown[0], y: side.shown[1],
      marker: markerOf(side), cliponaxis: false,
    };
    const layout = {
      margin: view.method === "pca" ? { l: 38, r: 8, t: 8, b: 22 } : { l: 8, r: 8, t: 8, b: 8 },
      xaxis: { ...axis, range: x },
      yaxis: { ...axis, range: y, scaleanchor: "x", scaleratio: 1 },
      dragmode: "zoom", hovermode: "closest", hoverdistance: 14, showlegend: false,
      paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    };
    return Plotly.react(side.plot, [points], layout, { displayModeBar: false, responsive: true });
  }

  // Where the axes of the plot put a place, in pixels of its area.
  const axesOf = (side) => [side.plot._fullLayout.xaxis, side.plot._fullLayout.yaxis];

  // Points go from where they are seen to where the layer has them, so that the eye can follow. plotly draws them once,
  // at the end of their way; on it they are shifted, since drawing them takes too long for every frame.
  function move(side) {
    const from = side.shown;
    const to = target(side);
    side.moving = null;
    Plotly.restyle(side.plot, { x: [to[0]], y: [to[1]], marker: [markerOf(side)] }, [0]);
    const nodes = side.plot.querySelectorAll(".scatterlayer .point");
    const show = (share) => {
      side.shown = to.map((values, axis) => values.map((value, n) => value + (1 - share) * (from[axis][n] - value)));
    };
    if (still.matches || from[0].length !== to[0].length || nodes.length !== to[0].length) {
      side.shown = to;
      drawMark(side);
      return;
    }
    const own = {};
    side.moving = own;
    let start = null;
    const tick = (now) => {
      if (side.moving !== own) return;
      start ??= now;
      const share = Math.min((now - start) / MOVE_MS, 1);
      show(share * (2 - share));
      const [xaxis, yaxis] = axesOf(side);
      nodes.forEach((node, n) => {
        node.setAttribute("transform", `translate(${xaxis.c2p(side.shown[0][n])},${yaxis.c2p(side.shown[1][n])})`);
      });
      drawMark(side);
      if (share < 1) requestAnimationFrame(tick);
      else side.moving = null;
    };
    tick(performance.now());
  }

  /* Words below, and marks on both. */

  function write(side) {
    const { text, kind } = side.run;
    const special = index.looks.kinds.findIndex(([name]) => name === "special");
    // Tokenizers that leave spaces to their tokens begin words with one; the others drop them.
    const spaced = text.length > 1 && !text.some((token) => /^\s/u.test(token));
    side.words = [];
    side.active = 0;
    side.text.replaceChildren();
    text.forEach((token, position) => {
      if (spaced && position && !token.startsWith("##")) side.text.append(" ");
      const word = document.createElement("span");
      word.textContent = token.trim() ? token : token.replace(/\n/g, "↵\n").replace(/^ +$/, "␣");
      word.dataset.position = position;
      if (kind[position] === special) word.classList.add("special");
      side.words.push(word);
      side.text.append(word);
    });
    side.text.scrollTop = 0;
  }

  function paint(side) {
    const all = looks(side);
    const { positions } = ruleOf(side);
    const place = new Map(positions.map((position, n) => [position, n]));
    side.words.forEach((word, position) => {
      const look = all[place.get(position)];
      word.classList.toggle("out", !look);
      word.classList.toggle("noise", Boolean(look?.isNoise));
      word.style.borderBottomColor = look ? look.colour : "transparent";
      word.title = look ? "" : "not among the content tokens";
    });
  }

  // The position that a mark has on a side, or null.
  function positionOn(side, marked) {
    if (!marked || !marked.side.run || !side.run) return null;
    if (marked.side.pick.prompt.value !== side.pick.prompt.value) return null;
    return marked.side === side ? marked.position : counterpart(marked.position, marked.side.run, side.run);
  }

  function drawMark(side) {
    const position = positionOn(side, mark ?? held);
    const n = position === null ? -1 : ruleOf(side).positions.indexOf(position);
    const axes = axesOf(side);
    const at = n < 0 || !side.shown[0].length ? null : axes.map((axis, k) => axis.c2p(side.shown[k][n]));
    // Zoomed, a token may be elsewhere.
    const isSeen = at !== null && at.every((pixel, k) => pixel >= 0 && pixel <= axes[k]._length);
    side.ring.hidden = side.tip.hidden = !isSeen;
    if (!isSeen) return;
    const [across, down] = at.map((pixel, k) => axes[k]._offset + pixel);
    side.ring.style.left = `${across}px`;
    side.ring.style.top = `${down}px`;
    writeTip(side, position);
    placeTip(side, across, down);
  }

  // A token, and what is to be said of it.
  function tokenWords(side, position) {
    const { kind, text } = side.run;
    const said = [`position ${position}`, index.looks.kinds[kind[position]][0]];
    const labels = labelsOf(side);
    const n = ruleOf(side).positions.indexOf(position);
    if (n >= 0 && labels && labels[n] !== NO_LABEL) {
      const size = labels.filter((label) => label === labels[n]).length;
      said.push(labels[n] === NOISE ? "noise" : `in a cluster of ${size}`);
    }
    return [visible(text[position]), said.filter((word) => word !== "other").join(" · ")];
  }

  function writeTip(side, position) {
    const detail = document.createElement("small");
    const [token, said] = tokenWords(side, position);
    detail.textContent = said;
    side.tip.replaceChildren(token, detail);
  }

  function placeTip(side, across, down) {
    const { width, height } = side.plot.getBoundingClientRect();
    const box = side.tip.getBoundingClientRect();
    const above = down - box.height - 14;
    side.tip.style.left = `${Math.max(2, Math.min(across - box.width / 2, width - box.width - 2))}px`;
    side.tip.style.top = `${above > 2 ? above : Math.min(down + 14, height - box.height - 2)}px`;
  }

  // `seen`: the side whose word is under the pointer, and must not be scrolled away from under it.
  function setMark(marked, seen = null) {
    mark = marked;
    showMarks(seen);
  }

  function hold(marked, seen = null) {
    const isHeld = held?.side === marked.side && held.position === marked.position;
    held = isHeld ? null : marked;
    showMarks(seen);
  }

  function showMarks(seen = null) {
    for (const side of sides) {
      if (!side.run || !side.isDrawn) continue;
      const marked = positionOn(side, mark ?? held);
      const kept = positionOn(side, held);
      side.words.forEach((word, position) => {
        word.classList.toggle("marked", position === marked);
        word.classList.toggle("held", position === kept);
      });
      if (marked !== null && side !== seen) reveal(side, side.words[marked]);
      drawMark(side);
    }
  }

  // Scrolls the text alone, never the page.
  function reveal(side, word) {
    const box = side.text.getBoundingClientRect();
    const found = word.getBoundingClientRect();
    if (found.top < box.top || found.bottom > box.bottom) {
      side.text.scrollTop += found.top - box.top - (box.height - found.height) / 2;
    }
  }

  /* Curves. */

  function svg(name, attributes, parent) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent?.append(node);
    return node;
  }

  const TALL = 40;
  let curves = [];

  const isDeep = ({ run: { trained, blocks } }) => trained < blocks;

  function buildCurves() {
    const holder = byId("curves");
    holder.replaceChildren();
    byId("deep").hidden = !sides.some(isDeep);
    const columns = getComputedStyle(holder).gridTemplateColumns;
    const width = Math.max(160, (columns.includes("px") ? parseFloat(columns) : holder.clientWidth) - 4);
    curves = index.curves.map((curve, number) => {
      return curveRow(holder, curve, sides.map((side) => ruleOf(side).curves[number]), width);
    });
  }

  // Room on the left for numbers, on the right for the state after the final norm.
  function scaleOf({ bounds }, own, width) {
    const known = own.flatMap(({ values }) => values).filter((value) => value !== null);
    const ends = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
    const [low, high] = bounds.map((bound, end) => bound ?? ends[end]);
    const [top, bottom, start, end] = [8, TALL - 6, 38, width - 8];
    const share = (value) => (low === high ? 0.5 : Math.min(1, Math.max(0, (value - low) / (high - low))));
    return {
      top, bottom, start, end,
      across: ([, stage, depth]) => (stage === "final_norm" ? end : start + depth * (end - 14 - start)),
      down: (value) => bottom - (bottom - top) * share(value),
      ticks: known.length ? [...new Set([low, high])] : [],
    };
  }

  // The line is broken where a value is undefined; a value between two such is a dot.
  function drawLine(chart, side, values, { across, down }) {
    let path = "";
    let pen = "M";
    side.run.states.forEach((state, n) => {
      if (values[n] === null) {
        pen = "M";
      } else if (isAfterNorm(state)) {
        svg("circle", { class: `${side.name} after`, cx: across(state), cy: down(values[n]), r: 2.5 }, chart);
      } else {
        path += `${pen}${across(state)},${down(values[n])}h0`;
        pen = "L";
      }
    });
    svg("path", { class: side.name, d: path }, chart);
    return svg("circle", { class: side.name, r: 3.5 }, chart);
  }

  function curveRow(holder, curve, own, width) {
    const row = document.createElement("div");
    row.className = "curve";
    const title = document.createElement("h2");
    const now = document.createElement("span");
    const numbers = sides.map((side) => {
      const number = document.createElement("b");
      number.className = side.name;
      now.append(number);
      return number;
    });
    title.append(curve.title, now);
    row.append(title);
    holder.append(row);
    const scale = scaleOf(curve, own, width);
    const { top, bottom, start, end, across, down } = scale;
    const chart = svg("svg", { width, height: TALL, "aria-hidden": "true" }, row);
    svg("line", { class: "axis", x1: start, x2: end, y1: bottom, y2: bottom }, chart);
    for (const tick of scale.ticks) {
      const label = svg("text", { x: start - 6, y: down(tick) + 3.5, "text-anchor": "end" }, chart);
      label.textContent = Number(tick.toPrecision(2));
    }
    for (const { name, run: { trained, blocks } } of sides.filter(isDeep)) {
      const x = across([trained, "block", trained / blocks]);
      svg("line", { class: `trained ${name}`, x1: x, x2: x, y1: top, y2: bottom }, chart);
    }
    const line = svg("line", { class: "now", y1: top - 4, y2: bottom }, chart);
    const dots = sides.map((side, k) => drawLine(chart, side, own[k].values, scale));
    const said = document.createElement("div");
    said.className = curve.counts ? "said long" : "said";
    const isAlone = (side) => Object.keys(ruleOf(side).labels?.alone ?? {}).length > 0;
    const isUndefined = (one) => Object.keys(one.undefined).length > 0;
    // Where nothing will ever be said no room is kept for it.
    if (own.some(isUndefined) || (curve.counts && sides.some(isAlone))) row.append(said);
    return { own, numbers, dots, line, said, across, down, counts: curve.counts };
  }

  function moveCurves() {
    for (const { own, numbers, dots, line, said, across, down, counts } of curves) {
      const remarks = sides.map((side, k) => {
        const { state } = framesOf(side)[side.frame];
        const value = own[k].values[state];
        const isKnown = value !== null;
        numbers[k].textContent = isKnown ? short(value) : "–";
        dots[k].setAttribute("visibility", isKnown ? "visible" : "hidden");
        if (isKnown) {
          dots[k].setAttribute("cx", across(side.run.states[state]));
          dots[k].setAttribute("cy", down(value));
        }
        const alone = counts ? ruleOf(side).labels?.alone ?? {} : {};
        if (state in own[k].undefined) return own[k].undefined[state];
        return state in alone ? meanInnerProduct(alone[state]) : null;
      });
      const isSame = remarks[0] && remarks[0] === remarks[1];
      const named = sides.map(({ name }, k) => remarks[k] && `${name}: ${remarks[k]}`).filter(Boolean);
      said.textContent = isSame ? `both: ${remarks[0]}` : named.join("; ");
      const { depth, afterNorm } = placeOf(view.step);
      const at = across([0, afterNorm ? "final_norm" : "block", depth]);
      line.setAttribute("x1", at);
      line.setAttribute("x2", at);
    }
  }

  /* The whole. */

  function showLegend() {
    const legend = byId("legend");
    legend.replaceChildren();
    const entry = (look, said) => {
      const holder = document.createElement("span");
      if (look) holder.append(symbol(...look));
      holder.append(said);
      legend.append(holder);
    };
    if (view.colour === "kind") {
      for (const [name, colour, shape] of index.looks.kinds) entry([colour, shape], name);
    } else if (view.colour === "position") {
      const holder = document.createElement("span");
      const bar = document.createElement("i");
      bar.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(along).join(",")})`;
      holder.append("first position", bar, "last");
      legend.append(holder);
    } else {
      for (const n of [0, 1, 2]) entry(index.looks.clusters[n], n === 2 ? "one look per cluster" : "");
      entry([index.looks.noise, "x-thin"], "noise");
    }
  }

  const PATHS = {
    "circle": "M5,1A4,4 0 1 1 4.99,1Z", "square": "M1,1H9V9H1Z", "triangle-up": "M5,1L9,9H1Z",
    "diamond": "M5,0L10,5L5,10L0,5Z", "x-thin": "M1,1L9,9M9,1L1,9",
  };

  function symbol(colour, shape) {
    const picture = svg("svg", { width: 10, height: 10, "aria-hidden": "true" });
    const stroke = shape === "x-thin" ? colour : "none";
    svg("path", { d: PATHS[shape], fill: colour, stroke, "stroke-width": 1.2 }, picture);
    return picture;
  }

  function showStep() {
    const place = placeOf(view.step);
    for (const side of sides) side.frame = frameAt(side, place);
    const lead = leader();
    const [layer, , depth] = statesOf(lead)[lead.frame];
    const said = place.afterNorm ? "after the final norm" : `${layer} of ${lead.run.blocks}, depth ${depth.toFixed(2)}`;
    const slider = byId("layer");
    slider.value = view.step;
    slider.setAttribute("aria-valuetext", said);
    byId("where").textContent = said;
    for (const side of sides) {
      const name = document.createElement("b");
      name.textContent = words(side);
      const more = describe(side);
      side.status.replaceChildren(name, more && ` · ${more}`);
      const reason = framesOf(side)[side.frame].undefined;
      side.reason.hidden = !reason;
      side.reason.textContent = reason ? `No picture: ${reason}` : "";
      side.plot.setAttribute("aria-label", [`${side.name} picture: ${chosen(side)}`, words(side), more].filter(Boolean).join(", "));
      paint(side);
    }
    moveCurves();
  }

  function go(step) {
    const last = lastStep();
    const next = Math.min(Math.max(step, 0), last);
    if (next !== view.step) {
      view.step = next;
      showStep();
      sides.forEach(move);
    }
    if (view.playing && next === last) play(false);
  }

  function play(on) {
    clearInterval(view.playing);
    view.playing = null;
    if (on && isReady()) {
      if (view.step === lastStep()) go(0);
      view.playing = setInterval(() => go(view.step + 1), STEP_MS);
    }
    byId("play").textContent = view.playing ? "Pause" : "Play";
    byId("play").setAttribute("aria-pressed", String(Boolean(view.playing)));
  }

  // After another run, projection or token rule: the same depth as before, as near as there is one.
  async function refresh(before) {
    for (const key of ["method", "rule", "colour", "axes"]) {
      view[key] = document.querySelector(`input[name=${key}]:checked`).value;
    }
    view.step = before ? stepOf(before) : 0;
    byId("layer").max = lastStep();
    showLegend();
    buildCurves();
    showStep();
    await Promise.all(sides.map(draw));
    sides.filter((side) => !side.isDrawn).forEach(listenToPlot);
    showMarks();
  }

  const whereNow = () => (isReady() ? placeOf(view.step) : null);

  // Nothing of the run before may stand under another name.
  function cover(side, reason) {
    side.shown = [[], []];
    side.moving = null;
    side.status.replaceChildren();
    side.reason.hidden = false;
    side.reason.textContent = reason;
    curves = [];
    byId("curves").replaceChildren();
  }

  async function choose(side) {
    play(false);
    const name = chosen(side);
    side.wanted = name;
    // What a narrow list cuts off.
    for (const list of Object.values(side.pick)) list.title = list.value;
    const before = whereNow();
    try {
      const run = await load(name);
      // Another choice may have come meanwhile.
      if (side.wanted !== name) return;
      side.run = run;
      if (held?.side === side) held = null;
      mark = null;
      write(side);
      if (isReady()) await refresh(before);
      else cover(side, "Shown as soon as the other side has a run.");
    } catch (error) {
      if (side.wanted !== name) return;
      side.run = null;
      side.words = [];
      side.text.replaceChildren();
      cover(side, error.message);
    }
  }

  /* Pointer and keyboard. */

  function listenToPlot(side) {
    side.isDrawn = true;
    side.plot.on("plotly_hover", ({ points: [point] }) => {
      setMark({ side, position: ruleOf(side).positions[point.pointIndex] });
    });
    side.plot.on("plotly_unhover", () => setMark(null));
    side.plot.on("plotly_click", ({ points: [point] }) => {
      hold({ side, position: ruleOf(side).positions[point.pointIndex] });
    });
    side.plot.on("plotly_afterplot", () => drawMark(side));
    // One zoom for both while they share their axes.
    side.plot.on("plotly_relayout", (change) => {
      const isZoom = Object.keys(change).some((key) => /^[xy]axis\.(auto)?range/.test(key));
      if (view.axes !== "shared" || side.following || !isZoom) return;
      const twin = other(side);
      twin.following = true;
      Plotly.relayout(twin.plot, change).then(() => { twin.following = false; });
    });
  }

  function listenToText(side) {
    const positionOf = (event) => {
      const word = event.target.closest("span[data-position]");
      return word ? { side, position: Number(word.dataset.position) } : null;
    };
    side.text.addEventListener("mouseover", (event) => setMark(positionOf(event), side));
    side.text.addEventListener("mouseleave", () => setMark(null));
    side.text.addEventListener("click", (event) => {
      const marked = positionOf(event);
      if (!marked) return;
      side.active = marked.position;
      side.text.blur();
      hold(marked, side);
    });
    const reach = () => {
      setMark({ side, position: side.active });
      side.heard.textContent = tokenWords(side, side.active).join(", ");
    };
    side.text.addEventListener("focus", () => {
      if (!byPointer && isReady()) reach();
    });
    side.text.addEventListener("blur", () => setMark(null));
    side.text.addEventListener("keydown", (event) => {
      if (!isReady()) return;
      const last = side.words.length - 1;
      const to = { ArrowLeft: side.active - 1, ArrowRight: side.active + 1, Home: 0, End: last }[event.key];
      if (to !== undefined) {
        side.active = Math.min(Math.max(to, 0), last);
        reach();
      } else if (event.key === "Enter") {
        hold({ side, position: side.active });
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    });
  }

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !isReady()) return;
    if (event.key === "Escape") {
      held = null;
      setMark(null);
    }
    // Lists and choices have arrows of their own, lists more keys; buttons and links have space.
    if (event.target.closest("select")) return;
    if (event.key.startsWith("Arrow") && event.target.closest("input[type=radio]")) return;
    if (event.key === " ") {
      if (event.target.closest("button, a")) return;
      play(!view.playing);
    } else {
      const to = {
        ArrowLeft: view.step - 1, ArrowDown: view.step - 1, ArrowRight: view.step + 1, ArrowUp: view.step + 1,
        Home: 0, End: lastStep(),
      }[event.key];
      const isVertical = ["ArrowUp", "ArrowDown"].includes(event.key);
      if (to === undefined || (isVertical && event.target !== byId("layer"))) return;
      play(false);
      go(to);
    }
    event.preventDefault();
  }

  async function start() {
    const { sides: colours } = index.looks;
    sides.forEach((side, k) => document.documentElement.style.setProperty(`--${side.name}`, colours[k]));
    sides.forEach((side, k) => {
      for (const [key, names] of [["model", index.models], ["weights", index.weights], ["prompt", index.prompts]]) {
        side.pick[key].replaceChildren(...names.map((name) => new Option(name, name)));
        side.pick[key].addEventListener("change", (event) => {
          if (byPointer) event.target.blur();
          choose(side);
        });
      }
      side.pick.weights.selectedIndex = Math.min(k, index.weights.length - 1);
    });
    document.querySelectorAll("input[type=radio]").forEach((input) => {
      input.addEventListener("change", () => {
        if (byPointer) input.blur();
        play(false);
        if (isReady()) refresh(whereNow());
      });
    });
    byId("play").addEventListener("click", () => play(!view.playing));
    byId("layer").addEventListener("input", (event) => {
      play(false);
      if (isReady()) go(Number(event.target.value));
    });
    document.addEventListener("pointerdown", () => { byPointer = true; }, true);
    document.addEventListener("keydown", () => { byPointer = false; }, true);
    document.addEventListener("keydown", press);
    sides.forEach(listenToText);
    await Promise.all(sides.map(choose));
    let width = byId("curves").clientWidth;
    new ResizeObserver(([{ target: { clientWidth } }]) => {
      // Remarks change their height.
      if (!isReady() || clientWidth === width) return;
      width = clientWidth;
      buildCurves();
      moveCurves();
    }).observe(byId("curves"));
    // Paper has no room for what fits a screen.
    const fit = (size) => { for (const { plot } of sides) Plotly.relayout(plot, size); };
    window.addEventListener("beforeprint", () => { if (isReady()) fit({ width: PRINTED, height: PRINTED }); });
    window.addEventListener("afterprint", () => { if (isReady()) fit({ width: null, height: null, autosize: true }); });
    document.documentElement.dataset.ready = "true";
  }

  return { add, start };
})();

explorer.start();
