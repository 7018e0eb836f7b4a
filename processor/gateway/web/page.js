// The page of the gateway: a live grid over any topic.
import { Connection, SowstreamError } from './sowstream.js';

const ROW_PX = 28;
const HEIGHT_MAX_PX = 8_000_000;
const SPARE_ROWS = 10;
const SCROLL_MS = 50;
const LEFT_MAX = 50;
const FIELDS_MAX = 200;

const $ = (id) => document.getElementById(id);
const state = {
  connection: null, view: null, topics: [], topic: null, fields: new Map(), shown: new Set(), paused: false,
  first: 0, top: 40, updates: 0, cell: { row: 0, column: 0 }, editing: false, flashes: new Map(), token: undefined,
  lags: [], drawn: false,
};

/** The fields of a record as JSON Pointers, objects gone through. */
function* leaves(record, prefix = '') {
  for (const [name, value] of Object.entries(record)) {
    const path = `${prefix}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) yield* leaves(value, path);
    else yield [path, value];
  }
}

const parts = (path) => path.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
const valueAt = (record, path) => parts(path).reduce((value, name) => value?.[name], record);
const nested = (path, value) => parts(path).reduceRight((inner, name) => ({ [name]: inner }), value);
const filterPath = (path) => '/' + parts(path).map((part) => (/^\w+$/.test(part) ? part : `'${part}'`)).join('/');
const shownText = (value) => (value === undefined || value === null ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value));

/** The place of a value, as the gateway orders values: nothing, numbers, texts. */
function place(value) {
  const one = Array.isArray(value) ? value[0] : value;
  if (one === undefined || one === null || one === '' || typeof one === 'object') return [0, 0];
  if (typeof one === 'boolean') return [2, Number(one)];
  const number = typeof one === 'number' ? one : one.trim() !== '' ? Number(one) : NaN;
  return Number.isNaN(number) ? [4, one] : [2, number];
}

function sorted(view) {
  const path = $('sort').value;
  const turn = $('direction').value ? -1 : 1;
  const rows = [...view].map(([key, record]) => ({ key, record, place: path ? place(valueAt(record, path)) : [0, 0] }));
  const before = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  rows.sort((a, b) => turn * before(a.place[0], b.place[0]) || turn * before(a.place[1], b.place[1]) || before(a.key, b.key));
  return rows;
}

function message(text) { $('fault').textContent = text; }

/** The text of an error; the caret of a filter's error stands below its place. */
function describe(error) { return error instanceof SowstreamError ? error.message : String(error); }

async function start() {
  state.connection = new Connection({ url: location.href, token: () => state.token, name: 'page' });
  state.connection.addEventListener('state', (event) => {
    $('state').textContent = { open: 'connected', waiting: 'connection lost, trying again' }[event.state] || event.state;
    $('state').dataset.state = event.state;
  });
  for (;;) {
    try {
      state.topics = (await state.connection.topics()).filter((topic) => topic.read);
      break;
    } catch (error) {
      if (error.reason === 'refused' || /token/.test(error.message)) await logOn();
      else { message(describe(error)); await new Promise((done) => setTimeout(done, 2000)); }
    }
  }
  $('topic').replaceChildren(...state.topics.map(({ topic }) => new Option(topic, topic)));
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has('topic')) $('topic').value = asked.get('topic');
  if (asked.has('filter')) $('filter').value = asked.get('filter');
  choose();
}

function logOn() {
  return new Promise((done) => {
    $('logon').addEventListener('close', () => { state.token = $('token').value; $('token').value = ''; done(); }, { once: true });
    $('logon').showModal();
  });
}

function choose() {
  state.topic = state.topics.find(({ topic }) => topic === $('topic').value) || null;
  state.fields.clear();
  state.shown.clear();
  $('sort').replaceChildren(new Option('key', ''));
  $('choices').replaceChildren();
  open();
}

function query() {
  const path = $('sort').value;
  return {
    filter: $('filter').value.trim() || undefined,
    orderBy: path ? `${filterPath(path)}${$('direction').value}` : 'SOW_KEY()',
    top: state.top,
    skip: state.first,
    timestamp: true,
  };
}

function open() {
  state.view?.close();
  state.first = 0;
  state.drawn = false;
  $('scroller').scrollTop = 0;
  $('left').replaceChildren();
  message('');
  if (!state.topic) { message('There is no topic that you may read.'); return; }
  measure();
  const view = state.connection.view(state.topic.topic, query());
  state.view = view;
  view.addEventListener('change', (event) => { if (state.view === view) changed(event.changes); });
  view.addEventListener('rows', draw);
  view.addEventListener('ready', draw);
  view.addEventListener('error', (event) => message(describe(event.error)));
  view.ready.catch((error) => message(describe(error)));
}

async function apply() {
  history.replaceState(null, '', `#${new URLSearchParams({ topic: $('topic').value, filter: $('filter').value })}`);
  if (!state.view || state.view.subscription.isOver) { open(); return; }
  message('');
  state.first = 0;
  $('scroller').scrollTop = 0;
  try {
    const { filter = '', orderBy, top, skip } = query();
    await state.view.replace({ filter, orderBy, top, skip });
    draw();
  } catch (error) { message(describe(error)); }
}

function changed(changes) {
  for (const change of changes) {
    state.updates += 1;
    const sent = change.message?.timestamp;
    if (sent) state.lags.push(Date.now() - Date.parse(sent));
    if (change.type === 'remove') left(change);
    else {
      if (change.type === 'update') state.flashes.set(change.key, { paths: change.changed, at: performance.now() });
      for (const [path] of leaves(change.record)) learn(path);
    }
  }
  draw();
}

function learn(path) {
  if (state.fields.has(path) || state.fields.size >= FIELDS_MAX) return;
  state.fields.set(path, true);
  state.shown.add(path);
  $('sort').append(new Option(path.slice(1), path));
  const box = Object.assign(document.createElement('input'), { type: 'checkbox', checked: true });
  box.addEventListener('change', () => { box.checked ? state.shown.add(path) : state.shown.delete(path); draw(); });
  const label = document.createElement('label');
  label.append(box, path.slice(1));
  $('choices').append(label);
}

function left(change) {
  if (change.reason === 'match' && !$('filter').value.trim()) return; // It left the window, not the query.
  const item = document.createElement('li');
  item.textContent = `${change.key}: ${change.reason}`;
  $('left').prepend(item);
  while ($('left').children.length > LEFT_MAX) $('left').lastChild.remove();
}

let isDrawing = false;
function draw() {
  if (isDrawing || state.paused) return;
  isDrawing = true;
  requestAnimationFrame(() => { isDrawing = false; if (!state.paused && state.view) render(); });
}

function render() {
  const { view } = state;
  const columns = [...state.fields.keys()].filter((path) => state.shown.has(path));
  const rows = sorted(view);
  const total = Math.max(view.rows ?? 0, rows.length);
  $('rows').textContent = total.toLocaleString('en');
  $('grid').setAttribute('aria-rowcount', String(total + 1));
  $('grid').setAttribute('aria-colcount', String(columns.length + 1));
  $('spacer').style.height = `${Math.min(HEIGHT_MAX_PX, (total + 1) * ROW_PX)}px`;
  fill($('head'), columns.length + 1, 'th', (cell, at) => {
    cell.setAttribute('role', 'columnheader');
    cell.scope = 'col';
    const text = at ? columns[at - 1].slice(1) : 'key';
    if (cell.textContent !== text) cell.textContent = text;
    const value = at && rows.length ? valueAt(rows[0].record, columns[at - 1]) : undefined;
    cell.className = typeof value === 'number' ? 'number' : '';
  });
  const now = performance.now();
  fill($('body'), rows.length, 'tr', (line, number) => {
    const { key, record } = rows[number];
    line.setAttribute('role', 'row');
    line.setAttribute('aria-rowindex', String(state.first + number + 2));
    const isOther = line.dataset.key !== key;
    line.dataset.key = key;
    const flash = state.flashes.get(key);
    fill(line, columns.length + 1, 'td', (cell, at) => {
      cell.setAttribute('role', at ? 'gridcell' : 'rowheader');
      const value = at ? valueAt(record, columns[at - 1]) : key;
      const text = shownText(value);
      cell.tabIndex = number === state.cell.row && at === state.cell.column ? 0 : -1;
      if (cell.firstElementChild) return; // It is being edited.
      if (cell.textContent !== text) {
        cell.textContent = text;
        cell.className = typeof value === 'number' ? 'number' : '';
        if (at && !isOther && flash && now - flash.at < 1000) {
          void cell.offsetWidth; // Begins the animation again.
          cell.classList.add('flash');
        } else cell.classList.remove('flash');
      }
    });
  });
  for (const [key, flash] of state.flashes) if (now - flash.at > 1000) state.flashes.delete(key);
  state.drawn = true;
}

function fill(parent, count, tag, each) {
  while (parent.children.length > count) parent.lastChild.remove();
  while (parent.children.length < count) parent.append(document.createElement(tag));
  for (let at = 0; at < count; at += 1) each(parent.children[at], at);
}

function measure() { state.top = Math.ceil($('scroller').clientHeight / ROW_PX) + SPARE_ROWS; }

let scrolling = null;
function scrolled() {
  if (scrolling) return;
  scrolling = setTimeout(async () => {
    scrolling = null;
    const { view } = state;
    if (!view || view.rows === undefined) return;
    const visible = Math.floor($('scroller').clientHeight / ROW_PX);
    const most = Math.max(0, view.rows - visible + 1);
    const way = $('scroller').scrollHeight - $('scroller').clientHeight;
    const share = way > 0 ? $('scroller').scrollTop / way : 0;
    const first = Math.min(most, Math.round(share * most));
    if (first === state.first) return;
    state.first = first;
    try { await view.replace({ skip: first }); draw(); } catch (error) { message(describe(error)); }
  }, SCROLL_MS);
}

function moveTo(row, column) {
  const lines = $('body').children;
  if (!lines.length) return;
  state.cell = { row: Math.min(Math.max(row, 0), lines.length - 1), column: Math.min(Math.max(column, 0), lines[0].children.length - 1) };
  for (const cell of $('body').querySelectorAll('[tabindex="0"]')) cell.tabIndex = -1;
  const cell = lines[state.cell.row].children[state.cell.column];
  cell.tabIndex = 0;
  cell.focus();
}

function edit(cell) {
  const column = [...cell.parentNode.children].indexOf(cell);
  const path = [...state.fields.keys()].filter((one) => state.shown.has(one))[column - 1];
  if (!column || !state.topic.publish || state.topic.key.includes(path)) return;
  const { key } = cell.parentNode.dataset;
  const record = state.view.get(key);
  const input = Object.assign(document.createElement('input'), { value: shownText(valueAt(record, path)) });
  input.setAttribute('aria-label', `${path.slice(1)} of ${key}`);
  let isOver = false;
  const end = (isKept) => {
    if (isOver) return;
    isOver = true;
    const text = input.value;
    input.remove();
    cell.textContent = shownText(valueAt(state.view.get(key) || {}, path));
    cell.focus();
    if (isKept) save(key, record, path, text);
  };
  input.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter') end(true);
    else if (event.key === 'Escape') end(false);
  });
  input.addEventListener('blur', () => end(false));
  cell.replaceChildren(input);
  input.select();
}

async function save(key, record, path, text) {
  let value = text;
  const held = valueAt(record, path);
  if (typeof held !== 'string') { try { value = JSON.parse(text); } catch { /* A text. */ } }
  const keys = state.topic.key.reduce((data, pointer) => Object.assign(data, nested(pointer, valueAt(record, pointer))), {});
  try {
    await state.connection.publish(state.topic.topic, { ...keys, ...nested(path, value) }, { allowMerge: true, key: state.topic.key.length ? undefined : key, ack: 'processed' });
    message('');
  } catch (error) { message(`The change was not made. ${describe(error)}`); }
}

$('query').addEventListener('submit', (event) => { event.preventDefault(); apply(); });
$('topic').addEventListener('change', choose);
$('sort').addEventListener('change', apply);
$('direction').addEventListener('change', apply);
$('scroller').addEventListener('scroll', scrolled, { passive: true });
new ResizeObserver(() => {
  const before = state.top;
  measure();
  if (state.view && state.top > before) state.view.replace({ top: state.top }).then(draw, () => {});
}).observe($('scroller'));
$('pause').addEventListener('click', () => {
  state.paused = !state.paused;
  $('pause').setAttribute('aria-pressed', String(state.paused));
  $('pause').textContent = state.paused ? 'Go on' : 'Pause';
  draw();
});
$('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const isDark = (root.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  root.dataset.theme = isDark ? 'light' : 'dark';
  $('theme').setAttribute('aria-pressed', String(!isDark));
});
$('body').addEventListener('dblclick', (event) => { const cell = event.target.closest('td'); if (cell) edit(cell); });
$('body').addEventListener('click', (event) => {
  const cell = event.target.closest('td');
  if (cell && !cell.firstElementChild) moveTo([...$('body').children].indexOf(cell.parentNode), [...cell.parentNode.children].indexOf(cell));
});
$('grid').addEventListener('keydown', (event) => {
  const cell = event.target.closest('td');
  if (!cell) return;
  const { row, column } = state.cell;
  const page = Math.floor($('scroller').clientHeight / ROW_PX) - 1;
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9] };
  if (event.key in steps) {
    const last = $('body').children.length - 1;
    if (event.key === 'ArrowDown' && row === last) $('scroller').scrollTop += ROW_PX;
    if (event.key === 'ArrowUp' && row === 0) $('scroller').scrollTop -= ROW_PX;
    moveTo(row + steps[event.key][0], column + steps[event.key][1]);
  } else if (event.key === 'PageDown') $('scroller').scrollTop += page * ROW_PX;
  else if (event.key === 'PageUp') $('scroller').scrollTop -= page * ROW_PX;
  else if (event.key === 'Enter' || event.key === 'F2') edit(cell);
  else return;
  event.preventDefault();
});
setInterval(() => {
  $('rate').textContent = state.updates.toLocaleString('en');
  state.updates = 0;
  const { lags } = state;
  lags.sort((a, b) => a - b);
  $('lag').textContent = lags.length ? `${Math.max(0, lags[lags.length >> 1]).toLocaleString('en')} ms` : '–';
  state.lags = [];
}, 1000);
window.sowstreamPage = state;
start();
