// The page of the gateway: a live grid over any topic. Here are its connection, its query and its buttons.
import { filterPath, leaves } from './page-cells.js';
import { Edits } from './page-edits.js';
import { copy, saveCsv } from './page-files.js';
import { completeFields, forgetSample, hintOf, searchFilter } from './page-filter.js';
import { Grid } from './page-grid.js';
import { FIGURES, followTotals, groupFilter, groupOptions } from './page-groups.js';
import { deskLink, followTheme, readLink, savedViews, saveView, writeLink } from './page-link.js';
import { askToken, element, listLeft, RecordPanel } from './page-record.js';
import { StatusTab } from './page-status.js';
import { LiveWindow } from './page-window.js';
import { Connection, SowstreamError } from './sowstream.js';

const PING_MS = 2000;
const LIFE_MS = 5000;
const TYPING_MS = 300;

const $ = (id) => document.getElementById(id);
/** The page around this one, if this is one pane of several. */
const desk = parent === window ? null : parent.sowstreamDesk;
const state = { connection: null, grid: null, topics: [], topic: null, filter: '', search: '', asks: 0, filters: new Map(), layout: [], groups: [], figure: FIGURES[0], hasTotals: false, token: desk?.token, updates: 0, lags: [], left: 0 };
const panel = new RecordPanel($('record'));
const statusTab = new StatusTab($('status'), () => state.connection.status());
const edits = state.edits = new Edits(
  (data, options) => state.connection.publish(state.topic.topic, data, options),
  (filter) => state.connection.sow(state.topic.topic, { filter }),
  () => { $('undo').disabled = !edits.canUndo; },
);

function message(text) { $('fault').textContent = text; }

/** The text of an error; the caret of a filter's error stands below its place. */
const describe = (error) => (error instanceof SowstreamError ? error.message : String(error));

function openConnection() {
  state.connection?.close();
  state.connection = new Connection({ url: new URL('.', location.href).href, token: () => state.token, name: 'page' });
  state.connection.addEventListener('state', (event) => {
    showState(event.state);
    if (event.state === 'open') state.grid?.window?.reread();
  });
}

function showState(name) {
  const text = { open: 'connected', silent: 'no sign of life', waiting: 'connection lost, trying again' }[name] || name;
  if ($('state').textContent !== text) $('state').textContent = text;
  $('state').dataset.state = name;
}

/** Show the age of the last message; a gateway from which none came is asked for one. */
let isAsking = false;
function showLife() {
  const { connection } = state;
  if (!connection?.heardAt) return;
  const age = Date.now() - connection.heardAt;
  const isGone = age > LIFE_MS || connection.state === 'waiting';
  $('age').textContent = isGone ? `${Math.floor(age / 1000)} s, at ${new Date(connection.heardAt).toTimeString().slice(0, 8)}` : `${Math.floor(age / 1000)} s`;
  document.body.dataset.life = isGone ? 'gone' : 'there';
  if (connection.state === 'open') showState(isGone ? 'silent' : 'open');
  if (age > PING_MS && !isAsking) {
    isAsking = true;
    connection.ping().catch(() => {}).then(() => { isAsking = false; showLife(); });
  }
}

async function start() {
  if (!globalThis.agGrid) {
    message('This Sowstream was installed without the grid of this page. In its clone, run "npm ci --prefix processor/gateway/web/adapters"; then load the page again, or build the package again.');
    return;
  }
  openConnection();
  for (;;) {
    try {
      state.topics = (await state.connection.topics()).filter((topic) => topic.read);
      break;
    } catch (error) {
      if (error.reason === 'refused' || /token/.test(error.message)) {
        state.token = await (desk ? desk.ask(state.token) : askToken());
        openConnection(); // One whose token was refused has ended.
      }
      else { message(describe(error)); await new Promise((done) => setTimeout(done, 2000)); }
    }
  }
  $('topic').replaceChildren(...state.topics.map(({ topic }) => new Option(topic, topic)));
  if (!state.topics.length) { message('There is no topic that you may read.'); return; }
  state.grid = new Grid($('grid'), {
    order: (order) => ask({ order }),
    layout: (layout) => { state.layout = layout; keepLink(); listColumns(); },
    edit: (edit) => attempt('The change was not made. ', () => edits.save(edit)),
    refused: message,
    open: openRow,
    copied: (text) => attempt('', () => copy(text)),
  });
  follow();
  const headers = state.token ? { authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch('v1/topics', { headers }).then((one) => one.json()).catch(() => ({}));
  $('operate').hidden = !answer.operator;
  const library = await fetch('adapters/node_modules/@perspective-dev/viewer/dist/cdn/perspective-viewer.js', { method: 'HEAD' }).catch(() => null);
  $('analyse').hidden = !library?.ok;
}

/** Show what the link asks for. */
async function follow(link = readLink(location.hash)) {
  showTab(link.isStatus);
  if (link.isStatus && state.topic) return;
  const topic = state.topics.find((one) => one.topic === link.topic) ?? state.topics[0];
  const { groups, layout, hasTotals, search } = link;
  const figure = FIGURES.includes(link.figure) ? link.figure : FIGURES[0];
  const asks = state.asks += 1;
  Object.assign(state, { topic, filter: link.filter.trim(), search, layout, groups, figure, hasTotals, left: 0 });
  $('left').replaceChildren();
  edits.forget();
  $('topic').value = topic.topic;
  $('filter').value = link.filter;
  $('search').value = search;
  $('figure').value = figure;
  $('totals').checked = hasTotals;
  panel.forget();
  message(link.topic && link.topic !== topic.topic ? `There is no topic ${link.topic} that you may read; this is ${topic.topic}.` : '');
  let { filter } = state;
  let options = {};
  try {
    filter = await searchFilter(state.connection, topic.topic, filter, search);
    if (groups.length) options = await groupOptions(state.connection, topic, { filter, paths: groups, figure });
  } catch (error) { message(describe(error)); }
  if (asks !== state.asks) return; // Another link was followed meanwhile.
  const shown = options.projection ? { topic: topic.topic, key: groups, isGrouped: true, publish: false } : topic;
  state.grid.begin(shown, link, (order) => new LiveWindow(state.connection, topic.topic, { filter, order, options }, {
    rows: drawn, changes: changed, error: (error) => message(describe(error)),
  }));
  if (link.record !== undefined && !groups.length) panel.open(state.connection, topic, link.record);
  listColumns();
  retotal();
  if (!link.isStatus && (!link.topic || link.topic === topic.topic)) keepLink();
}

/** Follow the totals of the query anew, if they are wanted. */
let endTotals = null;
async function retotal() {
  endTotals?.();
  endTotals = null;
  state.grid.total(undefined);
  const { topic, figure, hasTotals, grid: { window } } = state;
  if (!hasTotals) return;
  await attempt('', async () => {
    const isAsked = () => state.hasTotals && state.grid.window === window && state.figure === figure;
    const end = await followTotals(state.connection, topic, { filter: window.filter, figure }, (record) => { if (isAsked()) state.grid.total(record); }, (error) => message(describe(error)));
    if (isAsked()) endTotals = end;
    else end();
  });
}

/** Open a record, or of a group its records. */
function openRow(key, isAsked) {
  const { groups, connection, topic, grid } = state;
  if (groups.length) {
    const row = grid.window.rows.find((one) => one.key === key);
    if (!isAsked || !row) return;
    const filter = groupFilter(grid.window.filter, groups, Object.fromEntries(leaves(row.record)));
    location.hash = writeLink({ topic: topic.topic, filter, hasTotals: state.hasTotals, figure: state.figure });
  } else if (isAsked || panel.key !== undefined) {
    panel.open(connection, topic, key);
    keepLink();
  }
}

/** Group by other fields, or with other figures. */
function regroup() {
  const groups = [...$('groups').querySelectorAll('input:checked')].map(({ value }) => value);
  const { topic, filter, search } = state;
  follow({ topic: topic.topic, filter, search, order: [], layout: [], groups, figure: $('figure').value, hasTotals: $('totals').checked });
}

/** The fields by which records can be grouped: those of the topic, also while groups are shown. */
function listGroups() {
  const fields = [...new Set([...state.groups, ...(state.groups.length ? state.ungrouped ?? [] : state.grid.fields)])];
  if (!state.groups.length) state.ungrouped = fields;
  $('groups').replaceChildren(...fields.filter((path) => /^[\w/]+$/.test(path)).map((path) => {
    const box = element('input', { type: 'checkbox', value: path, checked: state.groups.includes(path) });
    return element('label', {}, box, path.slice(1));
  }));
}

/** Do something, and show why it failed. */
async function attempt(prefix, work) {
  try {
    await work();
    message('');
  } catch (error) { message(`${prefix}${describe(error)}`); }
}

const undo = () => attempt('The edit was not undone. ', () => edits.undo());

/** Show the records, or what operators see, with the way back. */
function showTab(isStatus) {
  statusTab.show(isStatus);
  $('records').hidden = isStatus;
  $('operate').textContent = isStatus ? 'Records' : 'Status';
  $('operate').href = !isStatus ? '#status' : state.topic ? viewLink() : '#';
}

/** The link of the whole view. */
function viewLink() {
  const { grid, topic, filter, search, layout, groups, figure, hasTotals } = state;
  return writeLink({ topic: topic.topic, filter, search, order: grid.window.order, layout, record: panel.key, groups, figure, hasTotals });
}

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
    const filter = await searchFilter(state.connection, topic.topic, texts.filter, texts.search);
    if (asks !== state.asks) return; // Another one was asked meanwhile.
    const isOther = filter !== window.filter;
    await window.replace({ filter, order: order ?? window.order });
    Object.assign(state, texts);
    state.grid.toTop();
    keepLink();
    if (isOther) retotal();
  } catch (error) { message(describe(error)); }
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
let hinted = null;
async function hint(window) {
  const asked = window.total === 0 ? `${state.topic.topic} ${window.filter}` : null;
  if (asked === hinted) return;
  const before = hinted;
  hinted = asked;
  if (asked) message(await hintOf(state.connection, state.topic.topic, window.filter));
  else if (before && /^(No record matches|.* has no record)/.test($('fault').textContent)) message('');
}

function changed(changes) {
  panel.remember(changes);
  for (const change of changes) {
    if (change.type !== 'remove') state.grid.learn(change.message.data); // Of a delta its fields alone.
    // Only updates: a row that leaves or enters the view comes with an old time.
    if (change.type === 'update') {
      state.updates += 1;
      const sent = change.message?.timestamp;
      if (sent && !state.groups.length) state.lags.push(Date.now() - Date.parse(sent));
    } else if (change.type === 'remove' && !state.groups.length && listLeft($('left'), change, state.grid.window)) {
      $('left-count').textContent = (state.left += 1).toLocaleString('en');
    }
  }
}

/** The menu of the columns: shown or not, pinned or not. */
function listColumns() {
  const { grid } = state;
  $('choices').replaceChildren(...grid.layout.map(({ path, isHidden, isPinned }) => {
    const [name, does] = [path.startsWith('/') ? path.slice(1) : 'key', isPinned ? 'unpin' : 'pin'];
    const box = element('input', { type: 'checkbox', checked: !isHidden, onchange: () => grid.arrange(path, { isHidden: !box.checked }) });
    const pin = element('button', { type: 'button', ariaLabel: `${does} ${name}`, onclick: () => grid.arrange(path, { isPinned: !isPinned }) }, does);
    return element('div', {}, element('label', {}, box, name), pin);
  }));
  listGroups();
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
  state.filters.set(state.topic.topic, { ...readLink(location.hash), filter: $('filter').value, record: undefined });
  const topic = $('topic').value;
  follow({ ...readLink(''), ...state.filters.get(topic), topic });
});
$('groups').addEventListener('change', regroup);
$('figure').addEventListener('change', regroup);
$('totals').addEventListener('change', () => { state.hasTotals = $('totals').checked; keepLink(); retotal(); });
$('csv').addEventListener('click', () => attempt('', () => saveCsv(state.grid.window, state.topic.topic, state.grid.shownPaths)));
$('undo').addEventListener('click', undo);
$('analyse').addEventListener('click', () => open(`adapters/perspective.html#${new URLSearchParams({ topic: state.topic.topic, filter: state.grid.window.filter })}`));
$('pause').addEventListener('click', () => {
  const isPaused = $('pause').getAttribute('aria-pressed') !== 'true';
  $('pause').setAttribute('aria-pressed', String(isPaused));
  $('pause').textContent = isPaused ? 'Go on' : 'Pause';
  state.grid.pause(isPaused);
});
$('record-close').addEventListener('click', () => { panel.close(); keepLink(); });
$('view-save').addEventListener('click', () => {
  const name = $('view-name').value.trim();
  if (name) { saveView(name, location.hash); $('view-name').value = ''; listViews(); }
});
$('beside').addEventListener('click', () => { $('beside').href = deskLink([location.hash, location.hash]); });
addEventListener('hashchange', () => { if (state.grid) follow(); });
addEventListener('keydown', (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === 'z' && !event.target.closest('input, textarea')) { event.preventDefault(); undo(); }
  else if (event.key === 'Escape' && event.target.closest('#record')) $('record-close').click();
});
document.addEventListener('click', ({ target }) => {
  for (const menu of document.querySelectorAll('.menu[open]')) if (!menu.contains(target) && target.isConnected) menu.open = false;
});
completeFields($('filter'), $('completions'), () => state.grid?.fields.map(filterPath) ?? []);
setInterval(() => {
  showLife();
  $('rate').textContent = state.updates.toLocaleString('en');
  state.updates = 0;
  const { lags } = state;
  lags.sort((a, b) => a - b);
  $('lag').textContent = lags.length ? `${Math.max(0, lags[lags.length >> 1]).toLocaleString('en')} ms` : '–';
  state.lags = [];
}, 1000);
followTheme($('theme'));
listViews();
window.sowstreamPage = state;
if (desk) document.documentElement.dataset.part = 'pane';
start();
