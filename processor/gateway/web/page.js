// The page of the gateway: a live grid over any topic. Here are its connection, its query and its buttons.
import { filterPath, leaves, saveCsv } from './page-cells.js';
import { Grid, statusTab } from './page-grid.js';
import { deskLink, followTheme, readLink, savedViews, saveView, writeLink } from './page-link.js';
import { both, columnFilter, completeFields, FIGURES, forgetSample, groupFilter, groupOptions, hintOf, searchFilter } from './page-queries.js';
import { $, askText, askToken, clock, Edits, element, listLeft, RecordPanel, toggle } from './page-record.js';
import { LiveWindow } from './page-window.js';
import { Connection, parse, SowstreamError, stringify } from './sowstream.js';

const PING_MS = 2000;
const LIFE_MS = 5000;
const TYPING_MS = 300;
const AGAIN_MS = 2000;
const STATES = { open: 'connected', silent: 'no sign of life', waiting: 'connection lost, trying again' };

/** The page around this one, if this is one pane of several. */
const desk = parent === window ? null : parent.sowstreamDesk;
/** `view` is what the link has of the page, but for the order and the record. */
const state = window.sowstreamPage = { connection: null, grid: null, topics: [], topic: null, view: readLink(''), asks: 0, views: new Map(), token: desk?.token, updates: 0, lags: [], left: 0 };
const panel = new RecordPanel($('record'));
const showStatus = statusTab($('status'), () => state.connection.status());
const edits = state.edits = new Edits({
  publish: (data, options) => state.connection.publish(state.topic.topic, data, options),
  remove: (options) => state.connection.sowDelete(state.topic.topic, options),
  read: (filter) => state.connection.sow(state.topic.topic, { filter }),
  changed: (canUndo) => { $('undo').disabled = !canUndo; },
});

function message(text) { $('fault').textContent = text; }

/** Show an error; the caret of a filter's error stands below its place. */
const fail = (error, before = '') => message(before + (error instanceof SowstreamError ? error.message : String(error)));

/** How to get a library that the gateway does not serve. */
const missing = (what) => `This Sowstream was installed without ${what}. In its clone, run "npm ci --prefix processor/gateway/web/adapters"; then load the page again, or build the package again.`;

/** Do something, and show why it failed. */
async function attempt(before, work) {
  try {
    await work();
    message('');
  } catch (error) { fail(error, before); }
}

function openConnection() {
  state.connection?.close();
  state.connection = new Connection({ url: new URL('.', location.href).href, token: () => state.token, name: 'page' });
  state.connection.addEventListener('state', (event) => {
    showState(event.state);
    if (event.state === 'open') state.grid?.window?.reread();
  });
}

function showState(name) {
  const text = STATES[name] ?? name;
  if ($('state').textContent !== text) $('state').textContent = text;
  $('state').dataset.state = name;
}

/** Show the age of the last message; a gateway from which none came is asked for one. */
function showLife() {
  const { connection } = state;
  if (!connection?.heardAt) return;
  const age = Date.now() - connection.heardAt;
  const isGone = age > LIFE_MS || connection.state === 'waiting';
  $('age').textContent = `${Math.floor(age / 1000)} s${isGone ? `, at ${clock(connection.heardAt)}` : ''}`;
  document.body.dataset.life = isGone ? 'gone' : 'there';
  if (connection.state === 'open') showState(isGone ? 'silent' : 'open');
  if (age > PING_MS && connection.state === 'open') connection.ping().then(showLife, () => {});
}

/** The topics that may be read, once they and the token can be had. */
async function readTopics() {
  try {
    return (await state.connection.topics()).filter((topic) => topic.read);
  } catch (error) {
    if (error.reason === 'refused' || /token/.test(error.message)) {
      state.token = await (desk ? desk.ask(state.token) : askToken());
      openConnection(); // One whose token was refused has ended.
    } else {
      fail(error);
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  }
  return readTopics();
}

async function start() {
  if (!globalThis.agGrid) {
    return message(missing('the grid of this page'));
  }
  openConnection();
  state.topics = await readTopics();
  $('topic').replaceChildren(...state.topics.map(({ topic }) => new Option(topic, topic)));
  if (!state.topics.length) return message('There is no topic that you may read.');
  state.grid = new Grid($('grid'), {
    order: (order) => ask({ order }),
    where: (where) => { state.view.where = where; ask(); },
    layout: (layout) => { state.view.layout = layout; keepLink(); listColumns(); },
    edit: (edit) => attempt('The change was not made. ', () => edits.save(edit)),
    refused: message,
    open: openRow,
    copied: (text) => attempt('The browser did not let the page copy: it needs https, or localhost. ', () => navigator.clipboard.writeText(text)),
  });
  follow();
  const { operator, perspective } = await fetch('v1/topics', { headers: state.token ? { authorization: `Bearer ${state.token}` } : {} }).then((answer) => answer.json()).catch(() => ({}));
  $('operate').hidden = !operator;
  $('analyse').hidden = perspective === undefined;
  return state.hasPerspective = perspective;
}

/** Show what the link asks for. */
async function follow(link = readLink(location.hash)) {
  showTab(link.isStatus);
  if (link.isStatus && state.topic) return;
  const topic = state.topics.find((one) => one.topic === link.topic) ?? state.topics[0];
  const figure = FIGURES.includes(link.figure) ? link.figure : FIGURES[0];
  const view = { ...link, topic: topic.topic, filter: link.filter.trim(), figure };
  // Groups have no filters of columns.
  if (view.groups.length) Object.assign(view, { filter: both(view.filter, columnFilter(view.where)), where: {} });
  const asks = state.asks += 1;
  Object.assign(state, { topic, view, left: 0, draft: undefined });
  $('new').hidden = !topic.publish || !topic.key.length || view.groups.length > 0;
  $('delete').hidden = !topic.delete;
  $('left').replaceChildren();
  edits.forget();
  panel.forget();
  for (const name of ['topic', 'filter', 'search', 'figure']) $(name).value = view[name];
  $('totals').checked = view.hasTotals;
  message(link.topic && link.topic !== topic.topic ? `There is no topic ${link.topic} that you may read; this is ${topic.topic}.` : '');
  let [filter, options] = [view.filter, {}];
  try {
    filter = await searchFilter(state.connection, topic.topic, both(filter, columnFilter(view.where)), view.search);
    if (view.groups.length) options = await groupOptions(state.connection, topic, { filter, paths: view.groups, figure });
  } catch (error) { fail(error); }
  if (asks !== state.asks) return; // Another link was followed meanwhile.
  const shown = options.projection ? { topic: topic.topic, key: view.groups, isGrouped: true, publish: false } : topic;
  state.grid.begin(shown, view, (order) => new LiveWindow(state.connection, topic.topic, { filter, order, options }, { rows: drawn, changes: changed, error: fail }));
  if (link.record !== undefined && !view.groups.length) panel.open(state.connection, topic, link.record);
  listColumns();
  retotal();
  if (!link.isStatus && (!link.topic || link.topic === topic.topic)) keepLink();
}

/** Follow the totals of the query anew, if they are wanted. */
let totals = null;
async function retotal() {
  totals?.close?.();
  const asked = totals = {};
  const { connection, topic, view: { figure, hasTotals }, grid } = state;
  const filter = grid.window.filter || undefined;
  grid.total(undefined);
  if (hasTotals) await attempt('', async () => {
    const options = await groupOptions(connection, topic, { filter, paths: [], figure });
    if (totals !== asked) return; // Others are wanted by now.
    const view = totals = connection.view(topic.topic, { filter, ...options });
    const draw = () => { if (totals === view) grid.total([...view.values()][0] ?? {}); };
    for (const event of ['change', 'ready']) view.addEventListener(event, draw);
    view.addEventListener('error', ({ error }) => fail(error));
  });
}

/** Open a record, or of a group its records. */
function openRow(key, isAsked) {
  const { view, connection, topic, grid } = state;
  if (view.groups.length) {
    const row = grid.window.rows.find((one) => one.key === key);
    if (!isAsked || !row) return;
    const filter = groupFilter(grid.window.filter, view.groups, Object.fromEntries(leaves(row.record)));
    location.hash = writeLink({ topic: topic.topic, filter, hasTotals: view.hasTotals, figure: view.figure });
  } else if (isAsked || panel.key !== undefined) {
    panel.open(connection, topic, key);
    keepLink();
  }
}

/** Group by other fields, or with other figures. */
function regroup() {
  const groups = [...$('groups').querySelectorAll('input:checked')].map(({ value }) => value);
  follow({ ...state.view, order: [], layout: [], record: undefined, groups, figure: $('figure').value });
}

/** Ask for a new record as JSON: at first a copy of the one that is open, or of the first one; after a mistake what was written. */
async function makeRecord() {
  const { rows } = state.grid.window;
  const { record = {} } = rows.find(({ key }) => key === panel.key) ?? rows[0] ?? {};
  const lines = Object.entries(record).map(([name, value]) => `  ${stringify(name)}: ${stringify(value)}`);
  const field = element('textarea', { rows: 16, cols: 60, value: state.draft ?? `{\n${lines.join(',\n')}\n}` });
  const text = await askText('made', `New record of ${state.topic.topic}`, 'Publish', element('label', {}, 'Its fields, with a new key ', field));
  if (text) attempt('The record was not made; New has its text. ', async () => { await edits.make(parse(state.draft = text)); state.draft = undefined; });
}

const deleteRecord = () => attempt('The record was not deleted. ', async () => {
  const { key, version } = panel;
  if (confirm(`Delete ${key}? This cannot be undone.`)) await edits.remove(key, version);
});

const undo = () => attempt('The edit was not undone. ', () => edits.undo());

/** Show the records, or what operators see, with the way back. */
function showTab(isStatus) {
  showStatus(isStatus);
  $('records').hidden = isStatus;
  for (const figure of ['rows', 'rate', 'lag']) $(figure).parentElement.hidden = isStatus; // They are the topic's.
  $('operate').textContent = isStatus ? 'Records' : 'Status';
  $('operate').href = !isStatus ? '#status' : state.topic ? viewLink() : '#';
}

/** The link of the whole view. */
const viewLink = () => writeLink({ ...state.view, order: state.grid.window.order, record: panel.key });

/** Write the whole view into the link. */
function keepLink() {
  if (readLink(location.hash).isStatus) return;
  const link = viewLink();
  if (link !== location.hash) history.replaceState(null, '', link);
  desk?.keep();
}

/** Ask another filter, search or order; a filter that is wrong leaves the grid as it is. */
async function ask({ order } = {}) {
  const { grid: { window }, topic } = state;
  const texts = { filter: $('filter').value.trim(), search: $('search').value.trim() };
  const asks = state.asks += 1;
  message('');
  try {
    const filter = await searchFilter(state.connection, topic.topic, both(texts.filter, columnFilter(state.view.where)), texts.search);
    if (asks !== state.asks) return; // Another one was asked meanwhile.
    const isOther = filter !== window.filter;
    await window.replace({ filter, order: order ?? window.order });
    Object.assign(state.view, texts);
    keepLink();
    if (isOther) retotal();
  } catch (error) { fail(error); }
}

function drawn() {
  const { window } = state.grid;
  $('rows').textContent = window.total === undefined ? '–' : window.total.toLocaleString('en');
  state.grid.draw();
  if ($('choices').childElementCount < state.grid.fields.length) {
    listColumns();
    forgetSample(state.connection); // It may have no record with the new field.
  }
  hint(window);
}

/** Say why the grid is empty. */
let [hinted, reason] = ['', ''];
async function hint({ total, filter }) {
  const asked = total === 0 ? `${state.topic.topic} ${filter}` : '';
  if (asked === hinted) return;
  hinted = asked;
  if (asked) {
    const text = await hintOf(state.connection, state.topic.topic, filter);
    if (hinted === asked) message(reason = text); // Else there are rows by now, or another query.
  } else if ($('fault').textContent === reason) message('');
}

function changed(changes) {
  const isGrouped = state.view.groups.length > 0;
  panel.remember(changes);
  for (const change of changes) {
    const { type, message: { data, timestamp } = {} } = change;
    if (type !== 'remove') state.grid.learn(data); // Of a delta its fields alone.
    if (type === 'update') state.updates += state.grid.window.updatesIn(change); // A row that leaves or enters the view comes with an old time.
    if (type === 'update' && timestamp && !isGrouped) state.lags.push(Date.now() - Date.parse(timestamp));
    if (type === 'remove' && !isGrouped && listLeft($('left'), change, state.grid.window)) $('left-count').textContent = (state.left += 1).toLocaleString('en');
  }
}

/** A box to check, with its name. */
const checkbox = (text, properties) => element('label', {}, element('input', { type: 'checkbox', ...properties }), text);

/** The menus of the columns, shown or not, pinned or not, and of the fields by which records can be grouped: those of the topic, also while groups are shown. */
function listColumns() {
  const { grid, view: { groups } } = state;
  $('choices').replaceChildren(...grid.layout.map(({ path, isHidden, isPinned }) => {
    const [name, does] = [path.startsWith('/') ? path.slice(1) : 'key', isPinned ? 'unpin' : 'pin'];
    const box = checkbox(name, { checked: !isHidden, onchange: ({ target }) => grid.api.setColumnsVisible([path], target.checked) });
    return element('div', {}, box, element('button', { type: 'button', ariaLabel: `${does} ${name}`, onclick: () => grid.api.setColumnsPinned([path], isPinned ? null : 'left') }, does));
  }));
  if (!groups.length) state.ungrouped = grid.fields;
  const fields = new Set([...groups, ...state.ungrouped ?? []].filter((path) => /^[\w/]+$/.test(path)));
  $('groups').replaceChildren(...[...fields].map((path) => checkbox(path.slice(1), { value: path, checked: groups.includes(path) })));
}

/** The menu of the views that were saved. */
function listViews() {
  $('views').replaceChildren(...Object.entries(savedViews()).map(([name, link]) => {
    const forget = element('button', { type: 'button', ariaLabel: `forget ${name}`, onclick: () => { saveView(name); listViews(); } }, '✕');
    return element('li', {}, element('a', { href: link }, name), forget);
  }));
}

$('query').addEventListener('submit', (event) => { event.preventDefault(); ask(); });
let typing = 0;
$('search').addEventListener('input', () => { clearTimeout(typing); typing = setTimeout(ask, TYPING_MS); });
$('topic').addEventListener('change', () => {
  state.views.set(state.topic.topic, { ...readLink(location.hash), filter: $('filter').value, record: undefined });
  const topic = $('topic').value;
  follow({ ...readLink(''), ...state.views.get(topic), topic });
});
for (const id of ['groups', 'figure']) $(id).addEventListener('change', regroup);
$('totals').addEventListener('change', () => { state.view.hasTotals = $('totals').checked; keepLink(); retotal(); });
$('csv').addEventListener('click', () => attempt('', () => saveCsv(state.grid.window, state.topic.topic, state.grid.shownPaths)));
$('undo').addEventListener('click', undo);
$('new').addEventListener('click', makeRecord);
$('delete').addEventListener('click', deleteRecord);
$('analyse').addEventListener('click', () => {
  if (!state.hasPerspective) return message(missing('Perspective, by which Analyse draws'));
  const { topic: { topic }, grid: { window: { filter, order } } } = state;
  return open(`adapters/perspective.html${writeLink({ topic, filter, order })}`);
});
toggle($('pause'), (isPaused) => { $('pause').textContent = isPaused ? 'Go on' : 'Pause'; state.grid.pause(isPaused); });
$('record-close').addEventListener('click', () => { panel.close(); keepLink(); state.grid.focus(); });
$('view-save').addEventListener('click', () => {
  const name = $('view-name').value.trim();
  if (name) { saveView(name, location.hash); $('view-name').value = ''; listViews(); }
});
$('beside').addEventListener('click', () => { $('beside').href = deskLink([location.hash, location.hash]); });
addEventListener('hashchange', () => { if (state.grid) follow(); });
addEventListener('keydown', (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === 'z' && !event.target.closest('input, textarea')) { event.preventDefault(); undo(); }
  else if (event.key === 'Escape' && event.target.matches('#record *, #grid .ag-cell')) $('record-close').click();
});
document.addEventListener('click', ({ target }) => {
  for (const menu of document.querySelectorAll('.menu[open]')) if (!menu.contains(target) && target.isConnected) menu.open = false;
});
completeFields($('filter'), $('completions'), () => state.grid?.fields.map(filterPath) ?? []);
setInterval(() => {
  showLife();
  state.grid?.window?.pace(state.updates);
  const lags = state.lags.sort((a, b) => a - b);
  $('rate').textContent = state.updates.toLocaleString('en');
  $('lag').textContent = lags.length ? `${Math.max(0, lags[lags.length >> 1]).toLocaleString('en')} ms` : '–';
  Object.assign(state, { updates: 0, lags: [] });
}, 1000);
followTheme($('theme'));
listViews();
if (desk) document.documentElement.dataset.part = 'pane';
start();
