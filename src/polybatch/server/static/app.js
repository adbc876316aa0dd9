// The page: asks /state twice a second, draws what it says, and chats over the public API.
"use strict";

const LOOK_MS = 500;
const KEPT = 240; // looks that the plots show: two minutes
const $ = (id) => document.getElementById(id);
const history_ = { time: [], rate: [], live: [], waiting: [], first: [], between: [] };
let before = null;

function headers(more = {}) {
  const key = sessionStorage.getItem("key");
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text || "";
}

// The p50 of what a histogram counted since the last look, by linear interpolation inside its bucket.
function median(now, old) {
  const counts = now.counts.map((count, i) => count - (old ? old.counts[i] : 0));
  let left = counts.reduce((a, b) => a + b, 0) / 2;
  if (left === 0) return null;
  for (let i = 0; i < counts.length; i++) {
    if (counts[i] >= left) {
      const low = i ? now.bounds[i - 1] : 0;
      return i < now.bounds.length ? low + ((now.bounds[i] - low) * left) / counts[i] : low;
    }
    left -= counts[i];
  }
  return null;
}

function milliseconds(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bar(share) {
  const outer = element("div", "bar");
  const inner = element("i", "");
  inner.style.width = `${Math.min(100, Math.max(0, share * 100)).toFixed(1)}%`;
  outer.append(inner);
  return outer;
}

function drawSlots(state) {
  $("slots").classList.toggle("dense", state.slots.length > 16);
  $("slots").parentElement.classList.toggle("wide", state.slots.length > 16);
  const cards = state.slots.map((slot) => {
    const card = element("div", `slot ${slot.state}`);
    const free = slot.request_id === null;
    card.title = `slot ${slot.slot}, ${slot.state}, position ${slot.position}`;
    const title = element("div", "", `#${slot.slot} `);
    title.append(element("b", "", free ? "free" : slot.state));
    const speed = slot.tokens_per_s ? `${slot.tokens_per_s.toFixed(1)} tok/s` : free && slot.position ? "kept" : "\u00a0";
    card.append(
      title,
      element("div", "who", free ? "\u00a0" : slot.user || `request ${slot.request_id}`),
      element("div", "far", `${slot.position} / ${state.ctx_len}`),
      element("div", "speed", speed),
      bar(slot.position / state.ctx_len),
    );
    return card;
  });
  $("slots").replaceChildren(...cards);
}

function drawTable(state, seconds) {
  const box = $("table");
  state.specializations.forEach((row, i) => {
    const old = before && before.specializations[i];
    const ran = old ? row.steps - old.steps : 0;
    const share = old && seconds ? (row.seconds - old.seconds) / seconds : 0;
    let line = box.children[i];
    if (!line) {
      line = element("div", "row");
      line.append(element("span", "", row.name), bar(0), element("span", "steps"));
      box.append(line);
    }
    line.classList.toggle("lit", ran > 0);
    line.children[1].firstChild.style.width = `${Math.min(100, share * 100).toFixed(1)}%`;
    line.children[2].textContent = row.steps.toLocaleString("en");
    line.title = `${row.rows} live rows, ${row.padding_rows} padding rows, ${row.seconds.toFixed(2)} s`;
  });
}

function remember(values) {
  for (const [name, value] of Object.entries(values)) {
    history_[name].push(value);
    if (history_[name].length > KEPT) history_[name].shift();
  }
}

function plotStyle(title, more = {}) {
  const style = getComputedStyle(document.body);
  const line = style.getPropertyValue("--line");
  return {
    margin: { l: 48, r: more.yaxis2 ? 44 : 12, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: style.color, size: 11 },
    legend: { orientation: "h", x: 0, y: 1.12 },
    xaxis: { type: "date", gridcolor: line },
    yaxis: { title: { text: title }, rangemode: "tozero", gridcolor: line },
    ...more,
  };
}

function drawPlots() {
  if (!window.Plotly) return;
  // Copies: the library draws again for new arrays only.
  const trace = (name, label, color, more = {}) => ({
    x: [...history_.time], y: [...history_[name]], name: label,
    mode: "lines", line: { color, width: 2 }, ...more,
  });
  const settings = { displayModeBar: false, responsive: true };
  const second = { overlaying: "y", side: "right", rangemode: "tozero", title: { text: "requests" }, showgrid: false };
  Plotly.react(
    "speed",
    [trace("rate", "tokens/s", "#30638e"), trace("live", "live", "#2e8b57", { yaxis: "y2" }),
      trace("waiting", "waiting", "#d1495b", { yaxis: "y2" })],
    plotStyle("tokens/s", { yaxis2: second }),
    settings,
  );
  Plotly.react(
    "latency",
    [trace("first", "first token p50", "#d98e04", { connectgaps: true }),
      trace("between", "between tokens p50", "#30638e", { connectgaps: true })],
    plotStyle("ms", { yaxis: { title: { text: "ms" }, type: "log" } }),
    settings,
  );
}

function show(state, seconds) {
  const rate = before && seconds ? (state.generated_tokens - before.generated_tokens) / seconds : 0;
  const first = median(state.first_token_s, before && before.first_token_s);
  const between = median(state.between_tokens_s, before && before.between_tokens_s);
  $("model").textContent = state.model;
  $("live").textContent = `${state.live} of ${state.slots.length}`;
  $("waiting").textContent = state.waiting;
  $("rate").textContent = rate.toFixed(rate < 10 ? 1 : 0);
  if (first !== null) $("first").textContent = milliseconds(first);
  if (between !== null) $("between").textContent = milliseconds(between);
  $("answers").textContent = Object.values(state.finished).reduce((a, b) => a + b, 0).toLocaleString("en");
  drawSlots(state);
  drawTable(state, seconds);
  const ms = (value) => (value === null ? null : value * 1000);
  remember({ time: new Date(), rate, live: state.live, waiting: state.waiting, first: ms(first), between: ms(between) });
  drawPlots();
}

let lastLook = 0;

async function look() {
  try {
    const response = await fetch("/state", { headers: headers() });
    $("key-form").hidden = response.status !== 401;
    const body = await response.json();
    if (response.ok) {
      const now = performance.now();
      show(body, lastLook ? (now - lastLook) / 1000 : 0);
      before = body;
      lastLook = now;
      problem("");
    } else {
      problem(body.error.message);
    }
  } catch (error) {
    problem(`the server does not answer (${error.message})`);
  }
  setTimeout(look, document.hidden ? 4 * LOOK_MS : LOOK_MS);
}

// Chat

const conversation = [];
let running = null;

function say(role, text) {
  const message = element("p", `message ${role}`, text);
  $("messages").append(message);
  message.scrollIntoView({ block: "nearest" });
  return message;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function answer() {
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  const shown = say("assistant", "");
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      signal: running.signal,
      body: JSON.stringify({
        messages: conversation,
        stream: true,
        user: "this page",
        temperature: Number($("temperature").value),
        max_tokens: Math.max(1, Math.round(Number($("max-tokens").value)) || 1),
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      shown.textContent += event.choices.map((choice) => choice.delta.content || "").join("");
      shown.scrollIntoView({ block: "nearest" });
    }
  } catch (error) {
    if (error.name !== "AbortError") say("error", error.message);
  }
  conversation.push({ role: "assistant", content: shown.textContent });
  running = null;
  $("send").disabled = false;
  $("stop").disabled = true;
}

$("chat-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  conversation.push({ role: "user", content: text });
  say("user", text);
  answer();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("chat-form").requestSubmit();
  }
});
$("stop").addEventListener("click", () => running && running.abort());
$("reset").addEventListener("click", () => {
  if (running) running.abort();
  conversation.length = 0;
  $("messages").replaceChildren();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  $("key").value = "";
});
look();
