// What the page does: asks the gateway for a text, shows it and the candidate tree as events arrive,
// and replays them. Nothing here is kept, and nothing but this gateway is asked.

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

// --- asking the gateway --------------------------------------------------------------------------

let key = "";
let model = "";

/** Ask the gateway; throws an Error with what it says. With status 401 the page asks for a key. */
async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const method = body ? "POST" : "GET";
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  if (answer.ok) return answer;
  if (answer.status === 401) at("key-form").hidden = false;
  const told = await answer.json().catch(() => ({}));
  throw new Error(told.error?.message ?? `the gateway answered ${answer.status}`);
}

/** The events of a streamed answer. */
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

/** Fields that say what the text must be; the user may change them. */
const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer" }, city: { enum: ["Oslo", "Lima"] } },
  required: ["name", "age", "city"],
  additionalProperties: false,
};
const SHAPES = {
  schema: { response_format: { type: "json_schema", json_schema: { name: "person", schema: PERSON } } },
  tools: {
    tools: [{ type: "function", function: { name: "remember", description: "Remember a person.", parameters: PERSON } }],
    tool_choice: "required",
    parallel_tool_calls: false,
  },
};

/** What is asked of the gateway: [path, body]. */
function question(decoding, seed) {
  const isChat = at("mode").value === "chat";
  const prompt = at("prompt").value;
  const body = {
    ...(at("shape").value ? JSON.parse(at("fields").value) : {}),
    model,
    ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
    max_tokens: at("tokens").valueAsNumber,
    temperature: at("temperature").valueAsNumber,
    seed,
    decoding,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    return_trace: decoding === "card",
  };
  return [isChat ? "v1/chat/completions" : "v1/completions", body];
}

// --- what happened -------------------------------------------------------------------------------

const FINDERS = ["draft", "ngram", "target"];
const UNTOLD = -1; // the token of a pass that the server had to leave out

/** All that a run told, as moments in the order of time; each moment is a state to be drawn. */
class Recording {
  constructor() {
    this.moments = [];
    this.tokens = []; // of the text: {token, finder}
    this.texts = { [UNTOLD]: "" }; // of tokens, by id
    this.trie = { id: 0, parent: null, token: null, children: new Map() };
    this.spine = [this.trie]; // place of the text -> node of the trie
    this.known = 1;
    this.nodes = []; // of the tree as it was last told
  }

  /** Take in what a chunk tells. */
  add(trace) {
    Object.assign(this.texts, trace.texts);
    for (const event of trace.events) {
      if (event.nodes) this.addTree(event);
      else this.addStep(event);
    }
  }

  addTree(event) {
    this.nodes = [...this.nodes.slice(0, event.known), ...event.nodes];
    this.insert({ us: event.us, tree: { behind: event.behind, nodes: this.nodes, fresh: !event.known } });
  }

  addStep(step) {
    while (this.tokens.length < step.behind) this.write(UNTOLD, "target");
    step.tokens.forEach((token, place) => {
      this.write(token, place >= step.accepted ? "target" : place < step.drafted ? "draft" : "ngram");
    });
    if (step.candidates.length) this.insert({ us: step.queried_us, step, decided: false });
    this.insert({ us: step.us, step, decided: true });
  }

  write(token, finder) {
    this.spine.push(this.child(this.spine[this.tokens.length], token));
    this.tokens.push({ token, finder });
  }

  /** A pass is told of when it is over: its question belongs before moments that are known already. */
  insert(change) {
    let place = this.moments.length;
    while (place && this.moments[place - 1].us > change.us) place -= 1;
    this.moments.splice(place, 0, { us: change.us, change });
    for (; place < this.moments.length; place += 1) {
      const moment = this.moments[place];
      Object.assign(moment, after(this.moments[place - 1] ?? NOTHING, moment.change));
    }
  }

  /** The trie holds every text that was thought of; what stands at its nodes keeps its place on
   * the screen from one moment to the next. */
  child(node, token) {
    let child = node.children.get(token);
    if (!child) {
      child = { id: this.known, parent: node, token, children: new Map() };
      this.known += 1;
      node.children.set(token, child);
    }
    return child;
  }

  textOf(token) {
    return this.texts[token] ?? `#${token}`;
  }
}

const NOTHING = { tree: null, step: null, decided: false, tokens: 0 };

/** The state behind a change: a tree that is re-rooted ends what was shown of a pass. */
function after({ tree, step, decided, tokens }, change) {
  if (change.tree) {
    const ends = step && change.tree.behind > step.behind;
    return { tree: change.tree, step: ends ? null : step, decided: decided && !ends, tokens };
  }
  const count = change.decided ? change.step.behind + change.step.tokens.length : tokens;
  return { tree, step: change.step, decided: change.decided, tokens: count };
}

// --- the tree ------------------------------------------------------------------------------------

const GAP = 26; // between columns
const ROW = 31;
const ROWS = 10;
const DEEPEST = 16;
const PILL = 24;
const LETTER = 7.53; // of 12.5 px in a font of fixed width
const LONGEST = 11;
const NARROWEST = 520; // a window narrower than that is scrolled
const STALE = 8; // a tree so many tokens behind is not asked any more

/** What is drawn of a moment: nodes by the id of their place in the trie, parents first. Columns
 * are as wide as what stands in them; there are as many as `width` has room for. */
function sceneOf(recording, moment, width) {
  const shown = nodesOf(recording, moment, DEEPEST);
  const fitting = columnsOf(shown).findIndex((column) => column.end > width);
  const scene = fitting < 0 ? shown : nodesOf(recording, moment, Math.max(1, fitting - 1));
  const columns = columnsOf(scene);
  for (const node of scene.values()) node.x = columns[node.depth].begin;
  setRows(scene);
  return scene;
}

function columnsOf(scene) {
  const widths = [];
  for (const { depth, width } of scene.values()) widths[depth] = Math.max(widths[depth] ?? 0, width);
  let begin = 2;
  return widths.map((width) => {
    const column = { begin, end: begin + width };
    begin = column.end + GAP;
    return column;
  });
}

function nodesOf(recording, moment, deepest) {
  const { step, decided } = moment;
  const isStale = moment.tree && step && step.behind - moment.tree.behind > STALE;
  const tree = isStale ? null : moment.tree;
  const base = tree ? tree.behind : step ? step.behind : moment.tokens;
  const shown = new Map();
  let leaves = 1;

  function show(trie, parent, chance, kinds) {
    const label = trie.token === null ? "prompt" : visible(recording.textOf(trie.token));
    const width = label.length * LETTER + 16;
    const node = { trie, parent, depth: parent ? parent.depth + 1 : 0, chance, kinds, label, width };
    shown.set(trie.id, node);
    return node;
  }

  /** A node below `parent`, or the one that is there already; null where there is no room. */
  function add(parent, token, chance, ...kinds) {
    if (!parent || parent.depth === deepest) return null;
    const trie = recording.child(parent.trie, token);
    const known = shown.get(trie.id);
    if (known) {
      known.kinds.push(...kinds);
      return known;
    }
    if (parent.hasChild) {
      if (leaves === ROWS) return null;
      leaves += 1;
    }
    parent.hasChild = true;
    return show(trie, parent, chance, kinds);
  }

  const root = show(recording.spine[base] ?? recording.trie, null, 1, ["root"]);
  if (step) addStep(add, root, recording, step, decided, base);
  if (tree) addTree(add, root, tree);
  return shown;
}

function addStep(add, root, recording, step, decided, base) {
  let from = root;
  for (let place = base; place < step.behind; place += 1) {
    from = add(from, recording.tokens[place].token, 1, "written");
  }
  const nodes = [];
  const accepted = acceptedOf(step);
  step.candidates.forEach(([token, parent], place) => {
    const fate = decided ? (accepted.has(place) ? "accepted" : "rejected") : "waiting";
    const of = place < step.drafted ? "of-draft" : "of-ngram";
    nodes.push(add(parent < 0 ? from : nodes[parent], token, 1, "asked", of, fate));
    if (accepted.has(place)) accepted.last = place;
  });
  const own = step.tokens[step.accepted];
  if (decided && own !== undefined) {
    add(accepted.last === undefined ? from : nodes[accepted.last], own, 1, "own");
  }
}

/** The candidates that became text. */
function acceptedOf(step) {
  const found = new Set();
  let above = -1;
  for (const token of step.tokens.slice(0, step.accepted)) {
    above = step.candidates.findIndex(([one, parent]) => one === token && parent === above);
    found.add(above);
  }
  return found;
}

/** The likeliest nodes that there is room for. */
function addTree(add, root, tree) {
  const nodes = [];
  const order = tree.nodes.map((_, place) => place).sort((a, b) => tree.nodes[b][2] - tree.nodes[a][2] || a - b);
  for (const place of order) {
    const [token, parent, logprob] = tree.nodes[place];
    nodes[place] = add(parent < 0 ? root : nodes[parent], token, Math.exp(logprob), "guess");
  }
}

/** The likeliest child goes on in its parent's row, others stand below. */
function setRows(scene) {
  const children = new Map();
  for (const node of scene.values()) {
    if (node.parent) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  }
  let row = 0;
  const walk = (node) => {
    node.y = row * ROW + PILL / 2 + 2;
    const below = (children.get(node) ?? []).sort((a, b) => b.chance - a.chance);
    below.forEach((child, place) => {
      if (place) row += 1;
      walk(child);
    });
  };
  walk(scene.values().next().value);
}

/** Draws scenes; what two of them have in common glides from one place to the other. */
class TreeView {
  constructor() {
    this.drawn = new Map();
  }

  clear() {
    at("nodes").replaceChildren();
    at("edges").replaceChildren();
    this.drawn.clear();
  }

  draw(recording, moment) {
    const width = Math.max(at("tree-frame").clientWidth, NARROWEST);
    at("tree").setAttribute("width", width);
    const scene = sceneOf(recording, moment, width);
    for (const [id, parts] of this.drawn) if (!scene.has(id)) this.remove(id, parts);
    for (const [id, node] of scene) this.move(this.drawn.get(id) ?? this.create(id, node), node);
  }

  create(id, node) {
    const group = document.createElementNS(SVG, "g");
    const pill = document.createElementNS(SVG, "rect");
    const label = document.createElementNS(SVG, "text");
    const edge = document.createElementNS(SVG, "path");
    label.textContent = node.label;
    pill.setAttribute("width", node.width);
    pill.setAttribute("height", PILL);
    pill.setAttribute("y", -PILL / 2);
    label.setAttribute("x", 8);
    label.setAttribute("y", 4.5);
    group.append(pill, label);
    group.setAttribute("class", "node gone");
    edge.setAttribute("class", "gone");
    at("nodes").append(group);
    at("edges").append(edge);
    const parts = { group, edge };
    this.drawn.set(id, parts);
    put(parts, node);
    group.getBoundingClientRect(); // so that it fades in where it is
    return parts;
  }

  move(parts, node) {
    put(parts, node);
    const strength = String(0.6 + 0.4 * Math.sqrt(node.chance));
    parts.group.setAttribute("class", `node ${node.kinds.join(" ")}`);
    parts.group.style.opacity = strength;
    parts.edge.setAttribute("class", node.parent ? "" : "gone");
    parts.edge.style.opacity = strength;
    if (node.parent) parts.edge.setAttribute("d", curve(node.parent, node));
  }

  remove(id, { group, edge }) {
    this.drawn.delete(id);
    group.classList.add("gone");
    edge.classList.add("gone");
    setTimeout(() => { group.remove(); edge.remove(); }, 240);
  }
}

function put(parts, node) {
  parts.group.style.transform = `translate(${node.x}px, ${node.y}px)`;
}

/** The edge between a node and one below it, which begins where the first one's pill ends. */
function curve(parent, node) {
  const from = parent.x + parent.width;
  const middle = (from + node.x) / 2;
  return `M${from} ${parent.y}C${middle} ${parent.y} ${middle} ${node.y} ${node.x} ${node.y}`;
}

/** A token's text on a pill: white space can be seen, and what is long is cut. */
function visible(text) {
  const shown = text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
  const letters = [...shown];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : shown || "∅";
}

// --- the text ------------------------------------------------------------------------------------

/** The text with each token in the colour of who found it. Tokens are known by what each writes by
 * itself; what none of them writes (a letter of several tokens) goes to the first that lacks it. */
class TextView {
  constructor() {
    this.clear();
  }

  clear() {
    at("text").replaceChildren();
    this.text = "";
    this.end = 0; // of the text that has spans
    this.spans = []; // by token
    this.ahead = 0; // place of the first one that is faint
  }

  add(text, recording, isLast) {
    const frame = at("text");
    const follows = frame.scrollHeight - frame.scrollTop - frame.clientHeight < 40;
    this.text += text;
    while (this.spans.length < recording.tokens.length) {
      const end = this.endOf(recording, this.spans.length);
      if (end === null) break;
      this.append(end, recording.tokens[this.spans.length].finder);
    }
    if (isLast && this.end < this.text.length) this.append(this.text.length, "target");
    if (follows) frame.scrollTop = frame.scrollHeight;
  }

  /** Where the text of that token ends; null while that is not known. */
  endOf(recording, place) {
    const own = recording.textOf(recording.tokens[place].token);
    if (this.text.startsWith(own, this.end)) return this.end + own.length;
    for (const { token } of recording.tokens.slice(place + 1)) {
      const later = recording.textOf(token);
      const found = later && !later.includes("\ufffd") ? this.text.indexOf(later, this.end) : -1;
      if (found >= 0) return found;
    }
    return null;
  }

  append(end, finder) {
    const span = document.createElement("span");
    span.className = finder;
    span.textContent = this.text.slice(this.end, end);
    at("text").append(span);
    // Faint where an earlier moment is being looked at.
    if (this.ahead === this.spans.length) this.ahead += 1;
    else span.classList.add("ahead");
    this.spans.push(span);
    this.end = end;
  }

  /** Only so many tokens were there at the moment that is shown; the others are faint. */
  showTo(count) {
    const to = Math.min(count, this.spans.length);
    for (let place = Math.min(to, this.ahead); place < Math.max(to, this.ahead); place += 1) {
      this.spans[place].classList.toggle("ahead", place >= to);
    }
    this.ahead = to;
    const frame = at("text");
    const latest = this.spans[to - 1];
    frame.scrollTop = latest ? latest.offsetTop - frame.clientHeight / 2 : 0;
  }
}

// --- moments -------------------------------------------------------------------------------------

const DWELL_MS = 200; // of a moment while it is live: more would be a flicker

/** Which moment is shown: the latest, in steps that can be followed, or where the slider stands. */
class Player {
  constructor(tree, text) {
    this.tree = tree;
    this.text = text;
    this.clear(new Recording());
  }

  clear(recording) {
    this.pause();
    clearTimeout(this.timer);
    this.recording = recording;
    this.shown = -1;
    this.isLive = false;
    this.tree.clear();
    at("caption").textContent = "";
  }

  get last() {
    return this.recording.moments.length - 1;
  }

  /** Follow what arrives. A pass is shown in three moments: its question, its answer, what is left. */
  follow() {
    this.isLive = true;
    const queue = [];
    let decided = 0; // microseconds of the latest answer that was shown
    const tick = () => {
      if (!this.isLive) return;
      if (!queue.length) {
        const { moments } = this.recording;
        const answer = moments.findLastIndex((moment) => moment.change.decided);
        if (answer >= 0 && moments[answer].us > decided) {
          decided = moments[answer].us;
          if (moments[answer].step?.candidates.length) queue.push(moments[answer - 1]);
          queue.push(moments[answer]);
        }
        queue.push(moments[this.last]);
      }
      const moment = queue.shift();
      if (moment) this.show(this.recording.moments.indexOf(moment));
      this.timer = setTimeout(tick, DWELL_MS);
    };
    tick();
  }

  /** No more arrives: the end is shown, or the moment that the user chose. */
  end() {
    const place = this.isLive ? this.last : this.shown;
    if (this.isLive) clearTimeout(this.timer);
    this.isLive = false;
    this.show(place);
  }

  play() {
    this.isLive = false;
    this.isPlaying = true;
    at("play").textContent = "Pause";
    if (this.shown >= this.last) this.show(0);
    const tick = () => {
      const { moments } = this.recording;
      if (!this.isPlaying || this.shown >= this.last) return this.pause();
      const wait = (moments[this.shown + 1].us - moments[this.shown].us) / 1000 / at("speed").value;
      this.timer = setTimeout(() => { this.show(this.shown + 1); tick(); }, Math.min(wait, 2000));
    };
    tick();
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    clearTimeout(this.timer);
    at("play").textContent = "Play";
  }

  show(place) {
    const moment = this.recording.moments[place];
    if (!moment) return;
    this.shown = place;
    const slider = at("moment");
    slider.max = this.last;
    slider.value = place;
    slider.disabled = at("play").disabled = this.last < 1;
    const seconds = `${(moment.us / 1e6).toFixed(3)} s`;
    at("clock").textContent = seconds;
    at("caption").textContent = captionOf(this.recording, moment);
    slider.setAttribute("aria-valuetext", `${seconds}: ${at("caption").textContent}`);
    this.tree.draw(this.recording, moment);
    if (!this.isLive) this.text.showTo(moment.tokens);
    countFinders(this.recording.tokens.slice(0, this.isLive ? undefined : moment.tokens));
  }
}

function captionOf(recording, { tree, step, decided, change }) {
  if (change.tree) {
    const count = tree.nodes.length;
    const nodes = `${count} ${count === 1 ? "candidate" : "candidates"}`;
    if (!tree.fresh) return `The draft grows its tree: ${nodes}.`;
    return count ? `The tree is re-rooted: ${nodes} survive.` : "Nothing of the tree survives: it starts anew.";
  }
  const asked = step.candidates.length;
  if (!decided) {
    const ngrams = asked - step.drafted;
    return `The target asks for ${asked}${ngrams ? `, ${ngrams} of them from n-grams` : ""}.`;
  }
  const token = step.tokens[step.accepted];
  const own = token === undefined ? "" : `“${visible(recording.textOf(token))}”`;
  if (!asked) return `The target finds no candidate and writes ${own}.`;
  const kept = `It accepts ${step.accepted} of ${asked}`;
  return own ? `${kept} and ${step.accepted < asked ? "corrects with" : "goes on with"} ${own}.` : `${kept}.`;
}

function countFinders(tokens) {
  const counts = { draft: 0, ngram: 0, target: 0 };
  for (const { finder } of tokens) counts[finder] += 1;
  for (const finder of FINDERS) at(`by-${finder}`).textContent = counts[finder];
}

// --- tokens per second ---------------------------------------------------------------------------

const rates = {};

/** Tokens per second behind the first response, which also waits for the prompt to be read. */
class Meter {
  constructor(row) {
    this.row = row;
    this.first = null;
    rates[row] = 0;
    this.tell();
  }

  add(usage) {
    if (!usage?.completion_tokens) return;
    const now = performance.now() / 1000;
    const tokens = usage.completion_tokens;
    this.first ??= { tokens, now };
    if (tokens > (this.tokens ?? 0)) {
      this.tokens = tokens;
      if (now > this.first.now) rates[this.row] = (tokens - this.first.tokens) / (now - this.first.now);
    }
    const figures = usage.speculation;
    if (figures) {
      this.passes = `${figures.steps} passes, ${figures.tokens_per_step.toFixed(2)} tokens each`;
    }
    this.tell();
  }

  tell() {
    const most = Math.max(...Object.values(rates), 1);
    for (const [row, rate] of Object.entries(rates)) {
      at(row).querySelector(".bar span").style.width = `${(100 * rate) / most}%`;
      at(row).querySelector(".rate").textContent = rate ? rate.toFixed(1) : "–";
    }
    at(this.row).querySelector(".passes").textContent = this.passes ?? "";
  }
}

/** Says which ways `auto` went lately and what each gave, where the gateway knows the server's metrics. */
async function showWays() {
  const ways = {};
  for (const line of (await (await ask("metrics")).text()).split("\n")) {
    const [, figure, way, value] = line.match(/^card_way_(\w+)\{way="(\w+)"\} (\S+)/) ?? [];
    if (figure) (ways[way] ??= {})[figure] = Number(value);
  }
  const used = Object.entries(ways).filter(([, { share }]) => share > 0).sort((a, b) => b[1].share - a[1].share);
  const told = used.map(([way, { share, tokens_per_second: rate }]) => `${way} ${Math.round(100 * share)} % of the time, ${rate.toFixed(1)} tokens/s`);
  at("ways").textContent = told.length ? `Ways of the server's latest texts with decoding auto: ${told.join("; ")}.` : "";
}

// --- a run ---------------------------------------------------------------------------------------

const tree = new TreeView();
const text = new TextView();
const player = new Player(tree, text);
let running = null;

/** Decode what stands in the form; `take` gets each choice. Returns the whole text and its calls. */
async function decode(decoding, seed, meter, signal, take) {
  const [path, body] = question(decoding, seed);
  let whole = "";
  const calls = [];
  for await (const event of eventsOf(await ask(path, body, signal))) {
    const choice = event.choices[0];
    if (choice) {
      const piece = choice.delta?.content ?? choice.text ?? "";
      whole += piece;
      for (const call of choice.delta?.tool_calls ?? []) {
        calls[call.index] = (calls[call.index] ?? `${call.function.name} `) + call.function.arguments;
      }
      take(piece, choice, calls);
    }
    meter.add(event.usage);
  }
  return [whole, ...calls].join("\n");
}

async function run() {
  const recording = new Recording();
  const seed = Math.floor(Math.random() * 2 ** 32);
  running = new AbortController();
  at("run").disabled = true;
  at("stop").disabled = false;
  at("problem").textContent = at("verdict").textContent = "";
  text.clear();
  at("calls").replaceChildren();
  player.clear(recording);
  delete rates.without;
  const meter = new Meter("with-card");
  const plainMeter = new Meter("without");
  try {
    say("Decoding with CARD …");
    player.follow();
    const mine = await decode("card", seed, meter, running.signal, (piece, choice, calls) => {
      const before = recording.tokens.length;
      if (choice.trace) recording.add(choice.trace);
      // Of calls the answer tells what they say; here stands how the model wrote them.
      const written = recording.tokens.slice(before).map(({ token }) => recording.textOf(token)).join("");
      text.add(at("shape").value === "tools" ? written : piece, recording, Boolean(choice.finish_reason));
      showCalls(calls);
    });
    player.end();
    if (at("plain").checked) {
      say("Decoding the same plainly …");
      const plain = await decode("autoregressive", seed, plainMeter, running.signal, () => {});
      compare(mine === plain);
    }
    await showWays();
    say("Done. Move the slider to see it again.");
  } catch (error) {
    player.end();
    if (running.signal.aborted) say("Stopped.");
    else {
      say("");
      at("problem").textContent = error.message;
    }
  } finally {
    running = null;
    at("run").disabled = false;
    at("stop").disabled = true;
  }
}

function showCalls(calls) {
  at("calls").replaceChildren(...calls.map((call) => {
    const item = document.createElement("li");
    item.textContent = call;
    return item;
  }));
}

function compare(isSame) {
  const ratio = rates["with-card"] / rates.without;
  const times = ratio > 0 && Number.isFinite(ratio) ? `CARD is ${ratio.toFixed(2)} times as fast as plain decoding here. ` : "";
  at("verdict").textContent = `${times}The texts are ${isSame ? "identical" : "NOT identical"}.`;
}

function say(what) {
  at("status").textContent = what;
}

/** Learn the model's name, which also says whether a key is needed. */
async function greet() {
  try {
    const told = await (await ask("v1/models")).json();
    model = told.data[0].id;
    at("key-form").hidden = true;
    at("problem").textContent = "";
    at("run").disabled = false;
    await showWays();
    say(`Ready to ask ${model}.`);
  } catch (error) {
    at("run").disabled = true;
    at("problem").textContent = error.message;
  }
}

at("ask").addEventListener("submit", (event) => { event.preventDefault(); run(); });
at("shape").addEventListener("input", () => {
  const fields = SHAPES[at("shape").value];
  at("fields-label").hidden = !fields;
  at("fields").value = fields ? JSON.stringify(fields, null, 1) : "";
});
at("stop").addEventListener("click", () => running?.abort());
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value;
  greet();
});
at("play").addEventListener("click", () => {
  if (player.isPlaying) player.pause();
  else player.play();
});
at("moment").addEventListener("input", () => {
  player.pause();
  player.isLive = false;
  player.show(at("moment").valueAsNumber);
});
addEventListener("resize", () => player.show(player.shown));
greet();
