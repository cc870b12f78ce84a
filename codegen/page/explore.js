"use strict";
// The page of `kvfsm explore`: steps through MODEL, which `explore_script.py` wrote. Nothing is fetched.

const PLACE = Object.fromEntries(MODEL.cells.map((cell, place) => [cell.name, place]));
const PROGRAM = Object.fromEntries(MODEL.programs.map((program) => [program.name, program]));
const INSTANCE = Object.fromEntries(MODEL.instances.map((instance) => [instance.name, instance]));
const COPIES = MODEL.programs.flatMap((program) =>
  Array.from({length: program.count}, (_, copy) => ({actor: program.name, copy, who: `${program.name} ${copy}`})));
const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

// What a state is, and where commands lead.

const initial = () => MODEL.cells.map(() => 0);
const cellValue = (state, name) => (name in PLACE ? state[PLACE[name]] : 0); // a cell that is left out is always 0
const shown = (names, value) => (value < names.length ? names[value] : String(value));

function after(state, command) {
  const next = state.slice();
  for (const [place, value] of command.updates(state)) next[place] = value;
  return next;
}

/** The number of each command that may be taken, and where it leads. */
function successors(state) {
  const found = [];
  MODEL.commands.forEach((command, number) => {
    if (command.guard(state)) found.push([number, after(state, command)]);
  });
  return found;
}

// What a step does, and what stands in its way, as the protocol is written.

function stepOf(state, actor, copy) {
  return PROGRAM[actor].steps[cellValue(state, `${actor}[${copy}].at`)];
}

/** Reads a state for one copy that has chosen some values. */
function reader(state, actor, copy, picked) {
  return {
    local: (name) => (name in picked ? picked[name] : cellValue(state, `${actor}[${copy}].${name}`)),
    actor: (other, field) => cellValue(state, `${other}[${other === actor ? copy : 0}].${field}`),
    slot: (instance, number, field) => cellValue(state, `${instance}[${number}].${field}`),
  };
}

function wordOf(state, instance, slot) {
  return Object.fromEntries(INSTANCE[instance].fields.map(([name]) => [name, cellValue(state, `${instance}[${slot}].${name}`)]));
}

/**
 * Fire one event on one word: how it went, and the word after it, as `language/interpreter.py` has it.
 * test_explore.py, test_the_page_steps_as_the_system_does, holds the two equal along walks through every protocol.
 */
function fire(instance, slot, event, args, word) {
  const machine = INSTANCE[instance];
  const {cases, args: given} = machine.events[event];
  const state = machine.states[word.state][0];
  const attempt = {
    slot: `${instance}[${slot}]`, event, refusal: null, why: null,
    args: Object.fromEntries(given.map(([name, names]) => [name, shown(names, args[name])])),
  };
  for (const item of cases) {
    if (!item.states.includes(word.state) || (item.when && !item.when(word, args))) continue;
    if (item.refuse) return [{...attempt, refusal: item.refuse, why: item.says ?? `in ${state}`}, word];
    const next = {...word, ...item.do(word, args)};
    if (item.to !== null) next.state = item.to;
    return [attempt, next];
  }
  return [{...attempt, refusal: "illegal", why: `${state} does not take ${event}`}, word];
}

/** What comes of a step with some choices: whether it waits, its events up to one that is refused, what it looks at. */
function tried(state, actor, copy, picked) {
  const step = stepOf(state, actor, copy);
  const x = reader(state, actor, copy, picked);
  const looks = [...new Set(step.looks.map(([instance, index]) => `${instance}[${index(x)}]`))];
  if (step.when && !step.when(x)) return {waits: true, attempts: [], looks, refused: false};
  const words = {};
  const attempts = [];
  for (const item of step.fire) {
    const slot = item.slot(x);
    const target = `${item.instance}[${slot}]`;
    const args = Object.fromEntries(Object.entries(item.args).map(([name, value]) => [name, +value(x)]));
    const [attempt, word] = fire(item.instance, slot, item.event, args, words[target] ?? wordOf(state, item.instance, slot));
    words[target] = word;
    attempts.push(attempt);
    if (attempt.refusal) return {waits: false, attempts, looks, refused: true};
  }
  return {waits: false, attempts, looks, refused: false};
}

function combinations(choose) {
  return choose.reduce((found, [name, high]) =>
    found.flatMap((picked) => Array.from({length: high + 1}, (_, value) => ({...picked, [name]: value}))), [{}]);
}

const same = (one, two) => JSON.stringify(one) === JSON.stringify(two);

/** For one copy, each way its step may go, and each way that it may not with the reason. */
function options(state, next, actor, copy) {
  const step = stepOf(state, actor, copy);
  const found = [];
  for (const [number, to] of next) {
    const command = MODEL.commands[number];
    if (command.actor !== actor || command.copy !== copy) continue;
    const about = command.outcome === "otherwise" ? {attempts: [], looks: []} : tried(state, actor, copy, command.choices);
    found.push({number, to, command, ...about});
  }
  const reasons = new Map();
  if (!found.some((option) => option.command.outcome === "otherwise")) {
    for (const picked of combinations(step.choose)) {
      if (found.some((option) => same(option.command.choices, picked))) continue;
      const {waits, attempts} = tried(state, actor, copy, picked);
      const last = attempts[attempts.length - 1];
      const why = waits ? `waits until ${step.says}` : last && last.refusal ? `${refusalText(last)}; waits` : "not in this state";
      reasons.set(why, [...(reasons.get(why) ?? []), picked]);
    }
  }
  return {step, found, blocked: [...reasons].map(([why, picks]) => ({why, picks}))};
}

const choiceText = (choices) => Object.entries(choices).map(([name, value]) => `${name}=${value}`).join(", ");
const argsText = (args) => Object.entries(args).map(([name, value]) => `${name} ${value}`).join(", ");
const callText = (attempt) => `${attempt.event} ${attempt.slot}`;
const refusalText = (attempt) => `${callText(attempt)} is refused as ${attempt.refusal}: ${attempt.why}`;

function changesOf(before, now) {
  return MODEL.cells.flatMap((cell, place) => before[place] === now[place] ? [] : [{
    cell: cell.name, before: shown(cell.names, before[place]), after: shown(cell.names, now[place]), value: now[place],
  }]);
}

// The run: states and turns; `cursor` is how many turns of it have been taken.

const run = {states: [initial()], turns: [], cursor: 0, story: null};
const current = () => run.states[run.cursor];

function turnOf(state, option) {
  const {command, to} = option;
  return {
    number: 0, actor: command.actor, copy: command.copy, step: command.step, outcome: command.outcome,
    choices: command.choices, attempts: option.attempts, looks: option.looks, changes: changesOf(state, to),
    then: stepOf(to, command.actor, command.copy).name, foreign: null,
  };
}

function take(option) {
  const turn = turnOf(current(), option);
  run.turns.length = run.cursor;
  run.states.length = run.cursor + 1;
  run.turns.push({...turn, number: run.cursor + 1});
  run.states.push(option.to);
  if (run.story && run.cursor + 1 <= run.story.steps.length) run.story = null; // another branch from here on
  go(run.cursor + 1);
}

function go(cursor) {
  run.cursor = Math.max(0, Math.min(cursor, run.turns.length));
  render();
}

function restart() {
  Object.assign(run, {states: [initial()], turns: [], cursor: 0, story: null});
  render();
}

function anyStep() {
  const next = successors(current());
  if (!next.length) return;
  const [number, to] = next[Math.floor(Math.random() * next.length)];
  const command = MODEL.commands[number];
  const found = options(current(), [[number, to]], command.actor, command.copy).found[0];
  take(found);
}

/** Load a story of `kvfsm check`; a step that the protocol as written does not take is marked, with the reason. */
function loadStory(story) {
  const states = [initial()];
  const turns = [];
  for (const step of story.steps) {
    const before = states[states.length - 1];
    const now = before.slice();
    for (const change of step.changes) if (change.cell in PLACE) now[PLACE[change.cell]] = change.value;
    turns.push({
      ...step, attempts: step.events, foreign: foreignTo(before, now, step),
    });
    states.push(now);
  }
  Object.assign(run, {states, turns, cursor: 0, story});
  render();
}

function foreignTo(before, now, step) {
  if (!PROGRAM[step.actor] || stepOf(before, step.actor, step.copy).name !== step.step) return "the protocol has no such step here";
  const known = step.changes.every((change) => change.cell in PLACE);
  const next = successors(before).filter(([number]) => {
    const command = MODEL.commands[number];
    return command.actor === step.actor && command.copy === step.copy;
  });
  if (known && next.some(([, to]) => same(to, now))) return null;
  const choose = stepOf(before, step.actor, step.copy).choose.map(([name]) => name);
  const picked = Object.fromEntries(choose.map((name) => [name, numberOf(step, name)]));
  const {waits, attempts} = tried(before, step.actor, step.copy, picked);
  if (waits) return `as written, the step waits until ${stepOf(before, step.actor, step.copy).says}`;
  const last = attempts[attempts.length - 1];
  if (last && last.refusal) return `as written, ${refusalText(last)}`;
  const [nearest] = next.map(([, to]) => changesOf(to, now)).sort((one, other) => one.length - other.length);
  const differs = (nearest ?? []).slice(0, 3).map(({cell, before: ours, after: told}) => `${cell} is ${ours} after it, not ${told}`);
  return differs.length ? `as written, ${differs.join(", ")}` : "as written, the step can't be taken here";
}

function numberOf(step, name) {
  const local = MODEL.cells[PLACE[`${step.actor}[${step.copy}].${name}`]];
  const text = step.choices[name] ?? "0";
  const place = local ? local.names.indexOf(text) : -1;
  return place >= 0 ? place : Number(text);
}

/** The stories in what somebody pasted: one story, a report of `check --json`, or a list of stories. */
function storiesIn(data) {
  if (Array.isArray(data)) return data.flatMap(storiesIn);
  if (data && Array.isArray(data.steps)) return [data];
  if (data && Array.isArray(data.protocols)) {
    return data.protocols.flatMap((entry) => entry.properties.map((item) => item.trace).filter((trace) => trace));
  }
  return [];
}

// Windows between check and use, as `story.py` finds them; test_explore.py holds the two equal, test_windows_are_those_of_the_story.

function windows(turns) {
  const found = [];
  const seen = {};
  for (const turn of turns) {
    const who = `${turn.actor} ${turn.copy}`;
    const own = (seen[who] ??= {});
    const fired = [...new Set(turn.attempts.map((attempt) => attempt.slot))];
    for (const slot of fired) {
      if (slot in own) found.push({who, slot, opened: own[slot], closed: turn.number});
      delete own[slot];
    }
    for (const slot of turn.looks) if (!fired.includes(slot)) own[slot] = turn.number;
    if (turn.outcome === "applied") for (const slot of fired) own[slot] = turn.number;
    if (turn.then === PROGRAM[turn.actor].steps[0].name) seen[who] = {};
  }
  for (const [who, own] of Object.entries(seen)) {
    for (const [slot, opened] of Object.entries(own)) found.push({who, slot, opened, closed: null});
  }
  return found.map((item) => ({...item, disturbed: turns.filter((turn) =>
    turn.number > item.opened && (item.closed === null || turn.number < item.closed)
    && `${turn.actor} ${turn.copy}` !== item.who
    && turn.changes.some((change) => change.cell.startsWith(`${item.slot}.`))).map((turn) => turn.number)}));
}

// Claims.

function claimStatus(claim, state, quiet) {
  if (claim.kind === "deadlock" && !quiet) return {mark: "none", text: "somebody can move"};
  const values = claim.exprs.map((expr) => Boolean(expr(state)));
  if (claim.kind === "sometimes") {
    if (values.some(Boolean)) return {mark: "met", text: "met here"};
    const before = run.states.slice(0, run.cursor).findIndex((earlier) => claim.exprs.some((expr) => expr(earlier)));
    return before >= 0 ? {mark: "met", text: `met after step ${before}`} : {mark: "none", text: "not met yet"};
  }
  const wrong = claim.bindings.filter((_, place) => !values[place]);
  if (values.every(Boolean)) return {mark: "holds", text: "holds here"};
  return {mark: "broken", text: `broken here${wrong.filter(Boolean).length ? ` for ${wrong.filter(Boolean).join("; ")}` : ""}`};
}

function promiseStatus(promise) {
  const owed = promise.pairs.flatMap(([source, target], place) => {
    let since = null;
    run.states.slice(0, run.cursor + 1).forEach((state, number) => {
      if (target(state)) since = null;
      else if (since === null && source(state)) since = number;
    });
    return since === null ? [] : [`${promise.bindings[place] || "it"} since step ${since}`];
  });
  return owed.length ? {mark: "owed", text: `owed: ${owed.join("; ")}`} : {mark: "none", text: "nothing owed"};
}

// Drawing.

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const hue = (who) => `lane-${COPIES.findIndex((copy) => copy.who === who) % 8}`;

let keyed = {};  // letter -> the move that it takes, as the page was last drawn

function render() {
  const state = current();
  const next = successors(state);
  const taken = run.turns.slice(0, run.cursor);
  const open = windows(taken).filter((item) => item.closed === null);
  const keys = {};
  const cards = COPIES.map((copy) => actorCard(state, next, copy, open.filter((item) => item.who === copy.who), keys));
  document.querySelector("#actors .cards").replaceChildren(...cards);
  document.querySelector("#slots .cards").replaceChildren(...MODEL.instances.map((item) => instanceCard(item, state)));
  MODEL.instances.forEach((item) => light(item, state));
  renderStory();
  renderClaims(state, next.some(([, to]) => !same(to, state)));
  renderBanner(state, next);
  document.querySelector("#back").disabled = document.querySelector("#restart").disabled = run.cursor === 0;
  document.querySelector("#forward").disabled = run.cursor === run.turns.length;
  document.querySelector("#random").disabled = next.length === 0;
  keyed = keys;
}

function actorCard(state, next, {actor, copy, who}, open, keys) {
  const program = PROGRAM[actor];
  const {step, found, blocked} = options(state, next, actor, copy);
  const locals = program.locals.map((name) => {
    const cell = MODEL.cells[PLACE[`${actor}[${copy}].${name}`]];
    return cell ? chip(name, shown(cell.names, cellValue(state, cell.name)), changedNow(cell.name)) : null;
  });
  const last = run.cursor > 0 ? run.turns[run.cursor - 1] : null;
  const moved = last && `${last.actor} ${last.copy}` === who;
  return h("article", {class: `actor ${hue(who)}${moved ? " moved" : ""}${found.length ? "" : " stuck"}`, "data-copy": who},
    h("h3", {}, h("span", {class: "dot"}), who, h("span", {class: "chips"}, ...locals)),
    open.map((item) => h("p", {class: `window${item.disturbed.length ? " disturbed" : ""}`},
      `relies on ${item.slot} since step ${item.opened}`,
      item.disturbed.length ? h("b", {}, `, changed in step ${item.disturbed.join(", ")}`) : "")),
    h("ol", {class: "steps"}, ...program.steps.map((each) => h("li",
      {class: `step${each === step ? " lit" : ""}`, "data-step": each.name, "aria-current": each === step ? "step" : null},
      h("span", {class: "label"}, each.name),
      each === step ? null : h("span", {class: "brief"}, brief(each)),
      each === step ? h("div", {class: "moves"}, ...found.map((option) => moveButton(state, option, keys)),
        ...blocked.map(blockedLine)) : null))));
}

function brief(step) {
  const fired = step.fire.map((item) => `${item.event} ${item.instance}`).join(", ");
  return fired || (step.when ? "looks" : step.choose.length ? "chooses" : "");
}

function moveButton(state, option, keys) {
  const letter = LETTERS[Object.keys(keys).length];
  if (letter) keys[letter] = option;
  const {command} = option;
  const refused = option.attempts.find((attempt) => attempt.refusal);
  const choice = choiceText(command.choices);
  const changes = changesOf(state, option.to).map((item) => `${item.cell} ${item.before} → ${item.after}`).join("\n");
  const says = command.outcome === "otherwise" ? "its condition does not hold"
    : option.attempts.map((attempt) => `${callText(attempt)}${argsText(attempt.args) ? ` (${argsText(attempt.args)})` : ""}`).join("; ");
  return h("button", {class: `move ${command.outcome}`, title: changes || "nothing changes", onclick: () => take(option),
    "data-command": String(option.number), "aria-keyshortcuts": letter ?? null},
    letter ? h("kbd", {}, letter) : null,
    h("span", {class: "what"}, choice ? h("b", {}, choice) : null, says || (choice ? "" : "go on"),
      refused ? h("i", {class: "refusal"}, `${refused.refusal}: ${refused.why}`) : null,
      command.outcome !== "applied" ? h("i", {class: "then"}, `goes on at ${stepOf(option.to, command.actor, command.copy).name}`) : null));
}

function blockedLine({why, picks}) {
  const all = picks.map(choiceText).filter(Boolean);
  const names = all.length > 4 ? `${all.slice(0, 3).join("; ")}; and ${all.length - 3} more` : all.join("; ");
  return h("p", {class: "blocked"}, names ? h("b", {}, names) : null, names ? " " : "", why);
}

function chip(name, value, fresh) {
  return h("span", {class: `chip${fresh ? " fresh" : ""}`}, `${name} `, h("b", {}, value));
}

function changedNow(cell) {
  return run.cursor > 0 && run.turns[run.cursor - 1].changes.some((change) => change.cell === cell);
}

const LARGE = new Set(); // instances whose picture is shown as large as it is drawn

function instanceCard(instance, state) {
  const drawing = document.querySelector(`#diagrams [data-machine="${instance.machine}"] svg`);
  const rows = Array.from({length: instance.slots}, (_, slot) => {
    const word = wordOf(state, instance.name, slot);
    const [name, kind, about] = instance.states[word.state];
    const chips = instance.fields.filter(([field]) => field !== "state" && (word[field] || changedNow(`${instance.name}[${slot}].${field}`)))
      .map(([field, names]) => chip(field, shown(names, word[field]), changedNow(`${instance.name}[${slot}].${field}`)));
    return h("div", {class: "slot", "data-slot": `${instance.name}[${slot}]`},
      h("span", {class: "which"}, `${instance.name}[${slot}]`),
      h("span", {class: `pill ${kind}${changedNow(`${instance.name}[${slot}].state`) ? " fresh" : ""}`, title: about}, name),
      h("span", {class: "chips"}, ...chips));
  });
  return h("article", {class: "instance", "data-instance": instance.name},
    h("h3", {}, instance.name, h("small", {}, `${instance.machine} · ${instance.title}`)),
    ...rows,
    drawing ? h("div", {class: `diagram${LARGE.has(instance.name) ? " large" : ""}`, title: "click: as large as it is drawn, and back",
      onclick: ({currentTarget}) => {
        if (currentTarget.classList.toggle("large")) LARGE.add(instance.name); else LARGE.delete(instance.name);
      }}, drawing.cloneNode(true))
      : h("p", {class: "pills"}, ...instance.states.map(([name, kind]) => h("span", {class: `pill state ${kind}`, "data-state": name}, name))));
}

/** Light the states that slots are in, and the arrow that was taken last. */
function light(instance, state) {
  const card = document.querySelector(`#slots [data-instance="${instance.name}"]`);
  const inside = {};
  for (let slot = 0; slot < instance.slots; slot++) {
    const name = instance.states[cellValue(state, `${instance.name}[${slot}].state`)][0];
    (inside[name] ??= []).push(slot);
  }
  for (const node of card.querySelectorAll("g.node.state, .pills .state")) {
    const slots = inside[node.dataset.state ?? node.querySelector("title").textContent];
    node.classList.toggle("lit", Boolean(slots));
    if (!slots) continue;
    node.dataset.slots = slots.join(" ");
    if (instance.slots > 1 && node instanceof SVGElement) badge(node, slots);
  }
  if (run.cursor === 0) return;
  for (const change of run.turns[run.cursor - 1].changes) {
    const [owner, field] = change.cell.split(".");
    if (field !== "state" || owner.split("[")[0] !== instance.name) continue;
    for (const edge of card.querySelectorAll("g.edge")) {
      if (edge.querySelector("title").textContent === `${change.before}->${change.after}`) edge.classList.add("taken");
    }
  }
}

function badge(node, slots) {
  const box = node.getBBox();
  slots.slice().reverse().forEach((slot, place) => {
    const group = document.createElementNS("http://www.w3.org/2000/svg", "g");
    group.setAttribute("class", "badge");
    group.innerHTML = `<circle cx="${box.x + box.width - place * 17}" cy="${box.y}" r="8"/>`
      + `<text x="${box.x + box.width - place * 17}" y="${box.y + 3.5}" text-anchor="middle">${slot}</text>`;
    node.append(group);
  });
}

function renderStory() {
  const acting = new Set(run.turns.map((turn) => `${turn.actor} ${turn.copy}`));
  const lanes = COPIES.filter((copy) => acting.has(copy.who));
  const bars = windows(run.turns).filter((item) => item.disturbed.length);
  const first = h("button", {class: `row start${run.cursor === 0 ? " now" : ""}`, onclick: () => go(0)}, h("span", {class: "n"}, "0"),
    h("span", {class: "lanes"}, ...lanes.map((copy) => h("i", {class: `lane ${hue(copy.who)}`, title: copy.who}))),
    h("span", {class: "text"}, "everything is as at first"));
  const rows = run.turns.map((turn) => {
    const who = `${turn.actor} ${turn.copy}`;
    const marks = lanes.map((copy) => {
      const inside = bars.some((bar) => bar.who === copy.who && turn.number > bar.opened && (bar.closed === null || turn.number < bar.closed));
      return h("i", {class: `lane ${hue(copy.who)}${copy.who === who ? " acts" : ""}${inside ? " window" : ""}`, title: copy.who});
    });
    const refused = turn.attempts.find((attempt) => attempt.refusal);
    const kind = ["row", turn.number === run.cursor ? "now" : "", turn.number > run.cursor ? "ahead" : "", turn.foreign ? "foreign" : ""];
    return h("button", {class: kind.join(" "), onclick: () => go(turn.number), "data-turn": String(turn.number)},
      h("span", {class: "n"}, String(turn.number)), h("span", {class: "lanes"}, ...marks),
      h("span", {class: "text"}, h("b", {}, `${who} ${turn.step}`), choiceText(turn.choices) ? ` (${choiceText(turn.choices)})` : "",
        turn.attempts.length ? `: ${turn.attempts.map(callText).join(", ")}` : "",
        refused ? h("i", {class: "refusal"}, `refused as ${refused.refusal}: ${refused.why}`) : null,
        turn.outcome === "otherwise" ? h("i", {class: "refusal"}, "its condition does not hold") : null,
        turn.foreign ? h("i", {class: "foreign"}, turn.foreign) : null,
        run.story && run.story.loop === turn.number ? h("i", {class: "then"}, "from here on, over and over") : null));
  });
  const box = document.querySelector("#story .rows");
  box.replaceChildren(first, ...rows);
  const now = box.querySelector(".now");
  if (now) box.scrollTop = Math.max(0, now.offsetTop - box.clientHeight / 2);
}

function renderClaims(state, canMove) {
  const order = {broken: 0, owed: 1, holds: 2, met: 2, none: 3};
  const list = [
    ...MODEL.claims.map((claim) => ({...claim, ...claimStatus(claim, state, !canMove)})),
    ...MODEL.promises.map((promise) => ({...promise, kind: "leads_to", ...promiseStatus(promise)})),
  ].sort((one, two) => order[one.mark] - order[two.mark]);
  document.querySelector("#claims .rows").replaceChildren(...list.map((claim) =>
    h("details", {class: `claim ${claim.mark}`, "data-claim": claim.name},
      h("summary", {}, h("span", {class: "mark"}), h("b", {}, claim.name), claim.says ? h("small", {}, claim.says) : null,
        h("span", {class: "status"}, claim.text)),
      h("p", {}, h("small", {}, claim.kind), " ", claim.that))));
}

function renderBanner(state, next) {
  const banner = document.querySelector("#banner");
  const story = run.story;
  const atEnd = story && run.cursor === run.turns.length;
  const broken = MODEL.claims.filter((claim) => claim.kind === "always" && !claim.exprs.every((expr) => expr(state)));
  banner.hidden = true;
  banner.className = "";
  if (atEnd && story.broken) {
    banner.replaceChildren(h("b", {}, `breaks ${story.broken.name}${story.broken.says ? ` (${story.broken.says})` : ""}: `),
      h("code", {}, story.broken.that), story.broken.for.length ? ` for ${story.broken.for.join("; ")}` : "", h("br"),
      Object.entries(story.broken.values).map(([name, value]) => `${name} = ${value}`).join(", "));
    Object.assign(banner, {className: "bad", hidden: false});
  } else if (story) {
    const end = story.broken ? ` It ends where ${story.broken.name} breaks.` : "";
    const mark = run.turns.some((turn) => turn.foreign) ? " A step in red is one that only the faulty spec takes." : "";
    banner.replaceChildren(`A recorded run of ${run.turns.length} steps: → goes on, ← goes back.${end}${mark}`);
    banner.hidden = false;
  } else if (broken.length) {
    banner.replaceChildren(h("b", {}, `${broken.map((claim) => claim.name).join(", ")} broken here`));
    Object.assign(banner, {className: "bad", hidden: false});
  } else if (!next.length) {
    banner.replaceChildren("Nobody can move any more.");
    banner.hidden = false;
  }
}

// Loading, keys, theme.

function openLoader() {
  document.querySelector("#why").textContent = "";
  document.querySelector("#loader").showModal();
}

function loadText(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    return `that is not JSON: ${error.message}`;
  }
  const all = storiesIn(data);
  const stories = all.filter((story) => story.protocol === MODEL.name);
  if (!stories.length) {
    const others = [...new Set(all.map((story) => story.protocol))];
    return others.length ? `those are runs of ${others.join(", ")}; this page is of ${MODEL.name}` : "there is no run in it";
  }
  for (const story of stories) addRun(story.broken ? story.broken.name : "a run", story);
  document.querySelector("#runs").value = String(RUNS.length - stories.length);
  loadStory(stories[0]);
  return null;
}

const RUNS = [];

function addRun(name, story) {
  RUNS.push(story);
  document.querySelector("#runs").append(h("option", {value: String(RUNS.length - 1)}, name));
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (["TEXTAREA", "INPUT", "SELECT"].includes(event.target.tagName)) return;
  const moves = {
    ArrowLeft: () => go(run.cursor - 1), ArrowRight: () => go(run.cursor + 1), Home: () => go(0), End: () => go(run.turns.length),
    Backspace: () => go(run.cursor - 1), " ": anyStep, "/": openLoader, ".": toggleTheme,
    "?": () => document.querySelector("#keys").showModal(),
  };
  const option = keyed[event.key];
  if (event.key === " " && event.target.tagName === "BUTTON") return;
  if (!moves[event.key] && !option) return;
  event.preventDefault();
  if (option) take(option);
  else moves[event.key]();
}

function start() {
  const bounds = Object.entries(MODEL.bounds).map(([name, value]) => `${name} ${value}`).join(", ");
  document.querySelector("#title").replaceChildren(h("span", {}, MODEL.name), MODEL.title, bounds ? h("small", {}, bounds) : "");
  document.querySelector("#about").textContent = MODEL.about;
  document.querySelector("#runs").append(h("option", {value: ""}, "one's own"));
  for (const {name, story} of MODEL.runs) addRun(name, story);
  document.querySelector("#runs").addEventListener("change", (event) => {
    if (event.target.value === "") restart();
    else loadStory(RUNS[Number(event.target.value)]);
    event.target.blur();
  });
  const click = (id, act) => document.querySelector(id).addEventListener("click", act);
  click("#restart", () => go(0));
  click("#back", () => go(run.cursor - 1));
  click("#forward", () => go(run.cursor + 1));
  click("#random", anyStep);
  click("#load", openLoader);
  click("#theme", toggleTheme);
  click("#help", () => document.querySelector("#keys").showModal());
  click("#take", (event) => {
    const why = loadText(document.querySelector("#paste").value);
    document.querySelector("#why").textContent = why ?? "";
    if (why) event.preventDefault();
  });
  document.querySelector("#file").addEventListener("change", async (event) => {
    if (event.target.files.length) document.querySelector("#paste").value = await event.target.files[0].text();
  });
  document.addEventListener("keydown", onKey);
  // A link may name a run and a step of it: #run=2&at=5
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("run") && RUNS[Number(wanted.get("run"))]) {
    document.querySelector("#runs").value = wanted.get("run");
    loadStory(RUNS[Number(wanted.get("run"))]);
    if (wanted.has("at")) go(Number(wanted.get("at")));
  } else render();
}

start();
