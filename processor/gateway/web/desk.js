// Several grids side by side: each pane is the page of one topic, conflated topic or view, and the link has the links of all.
import { deskLink, followTheme, PANES_MAX, readDesk } from './page-link.js';
import { $, askToken, element, toggle } from './page-record.js';

const frames = () => [...$('panes').querySelectorAll('iframe')];

/** The link of a pane as it is now; before its page is there, the one that it was opened with. */
const linkOf = (frame) => (frame.contentWindow?.location.hash || frame.dataset.link);

/** What the panes share: they call `keep` when their links change; this page, which no pane takes with it, asks for the token of all. */
window.sowstreamDesk = {
  token: globalThis.opener?.sowstreamPage?.token,
  async ask(refused) {
    if (this.token === undefined || this.token === refused) this.token = await (this.asked ??= askToken());
    this.asked = null;
    return this.token;
  },
  keep() {
    for (const [at, frame] of frames().entries()) frame.title = `Pane ${at + 1}: ${new URLSearchParams(linkOf(frame).slice(1)).get('topic') ?? ''}`;
    history.replaceState(null, '', deskLink(frames().map(linkOf), $('stack').ariaPressed === 'true'));
  },
};

function add(link) {
  const pane = element('section', {}, element('iframe', { src: `./${link}` }), element('button', {
    type: 'button', textContent: '✕', title: 'Close this pane', ariaLabel: 'Close this pane', onclick: () => { pane.remove(); show(); },
  }));
  pane.firstChild.dataset.link = link;
  $('panes').append(pane);
}

function show() {
  $('add').disabled = frames().length >= PANES_MAX;
  for (const close of $('panes').querySelectorAll('button')) close.hidden = frames().length === 1;
  window.sowstreamDesk.keep();
}

const stack = toggle($('stack'), (isStacked) => { $('panes').classList.toggle('stacked', isStacked); show(); });

/** Open the panes of the link. */
function follow() {
  const { links, isStacked } = readDesk(location.hash);
  $('panes').replaceChildren();
  for (const link of links.length ? links : ['#', '#']) add(link);
  stack(isStacked);
}

$('add').addEventListener('click', () => { add(linkOf(frames().at(-1))); show(); });
addEventListener('hashchange', follow);
followTheme($('theme'));
follow();
