// Several grids side by side: each pane is the page of one topic, conflated topic or view, and the link has the links of all.
import { deskLink, followTheme, PANES_MAX, readDesk } from './page-link.js';
import { askToken } from './page-record.js';

const $ = (id) => document.getElementById(id);
const frames = () => [...$('panes').querySelectorAll('iframe')];
const isStacked = () => $('stack').getAttribute('aria-pressed') === 'true';

/** The link of a pane as it is now; before its page is there, the one that it was opened with. */
const linkOf = (frame) => (frame.contentWindow?.location.hash || frame.dataset.link);

/** What the panes share: they call `keep` when their links change; this page, which no pane takes with it, asks for the token of all. */
window.sowstreamDesk = {
  token: globalThis.opener?.sowstreamPage?.token,
  asked: null,
  async ask(refused) {
    if (this.token === undefined || this.token === refused) this.token = await (this.asked ??= askToken());
    this.asked = null;
    return this.token;
  },
  keep() {
    for (const [at, frame] of frames().entries()) frame.title = `Pane ${at + 1}: ${new URLSearchParams(linkOf(frame).slice(1)).get('topic') ?? ''}`;
    history.replaceState(null, '', deskLink(frames().map(linkOf), isStacked()));
  },
};

function add(link) {
  const pane = document.createElement('section');
  const frame = document.createElement('iframe');
  const close = Object.assign(document.createElement('button'), { type: 'button', textContent: '✕', title: 'Close this pane' });
  close.setAttribute('aria-label', 'Close this pane');
  close.addEventListener('click', () => { pane.remove(); show(); });
  frame.dataset.link = link;
  frame.src = `./${link}`;
  pane.append(frame, close);
  $('panes').append(pane);
}

function show() {
  $('panes').classList.toggle('stacked', isStacked());
  $('add').disabled = frames().length >= PANES_MAX;
  for (const close of $('panes').querySelectorAll('button')) close.hidden = frames().length === 1;
  window.sowstreamDesk.keep();
}

/** Open the panes of the link. */
function follow() {
  const { links, isStacked: isAsked } = readDesk(location.hash);
  $('stack').setAttribute('aria-pressed', String(isAsked));
  $('panes').replaceChildren();
  for (const link of links.length ? links : ['#', '#']) add(link);
  show();
}

$('add').addEventListener('click', () => { add(linkOf(frames().at(-1))); show(); });
$('stack').addEventListener('click', () => { $('stack').setAttribute('aria-pressed', String(!isStacked())); show(); });
addEventListener('hashchange', follow);
followTheme($('theme'));
follow();
