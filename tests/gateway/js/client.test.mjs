// Tests of the JavaScript client in Node, against the gateway at GATEWAY_URL; run by tests/gateway/test_javascript.py.
import assert from 'node:assert/strict';
import test from 'node:test';

import { connect, merge, SowstreamError } from '../../../processor/gateway/web/sowstream.js';

const url = process.env.GATEWAY_URL;
const sockets = [];
class Kept extends WebSocket {
  constructor(...settings) { super(...settings); sockets.push(this); }
}
const open = (settings = {}) => connect({ url, WebSocket: Kept, backoffMin: 10, backoffMax: 50, ...settings });

/** Wait until something holds, looking again after each change of a view. */
async function until(view, holds) {
  for (let turn = 0; !holds(); turn += 1) {
    if (turn > 2400) throw new Error('it never holds');
    await new Promise((done) => { view.addEventListener('change', done, { once: true }); setTimeout(done, 50); });
  }
}

test('EURUSD: a full quote, then only what changed, merged for a late joiner', async () => {
  const desk = await open();
  const quotes = desk.view('quotes', { filter: "/id = 'EURUSD'" });
  await quotes.ready;
  const seen = [];
  quotes.addEventListener('change', (event) => seen.push(...event.changes));
  const publisher = await open({ name: 'publisher' });
  await publisher.publish('quotes', { id: 'EURUSD', bid: 1.085, offer: 1.0854, size: { bid: 5, offer: 3 } }, { ack: 'persisted' });
  await publisher.publish('quotes', { id: 'EURUSD', offer: 1.0852 }, { allowMerge: true, ack: 'persisted' });
  await until(quotes, () => quotes.get('EURUSD')?.offer === 1.0852);
  assert.deepEqual(quotes.get('EURUSD'), { id: 'EURUSD', bid: 1.085, offer: 1.0852, size: { bid: 5, offer: 3 } });
  const last = seen.at(-1);
  if (seen.length > 1) assert.deepEqual(last.changed.sort(), ['/offer']);
  const late = await open();
  const joined = late.view('quotes');
  await joined.ready;
  assert.deepEqual(joined.get('EURUSD'), quotes.get('EURUSD'));
  for (const one of [desk, publisher, late]) one.close();
});

test('records enter and leave a view with its filter, and replace changes it in one step', async () => {
  const client = await open();
  const view = client.view('orders', { filter: '/qty > 10' });
  await view.ready;
  await client.publish('orders', { id: 'a', qty: 20 }, { ack: 'persisted' });
  await client.publish('orders', { id: 'b', qty: 5 }, { ack: 'persisted' });
  await until(view, () => view.has('a'));
  assert.equal(view.has('b'), false);
  await client.deltaPublish('orders', { id: 'a', qty: 1 }, { ack: 'persisted' });
  await until(view, () => view.size === 0);
  await view.replace({ filter: '/qty < 10' });
  await until(view, () => view.size === 2);
  await client.sowDelete('orders', { key: 'a', ack: 'persisted' });
  await until(view, () => view.size === 1);
  client.close();
});

test('a view with a select has its own fields only, next to a view of all fields', async () => {
  const client = await open();
  const whole = client.view('orders', { filter: "/id = 'sel'" });
  const part = client.view('orders', { filter: "/id = 'sel'", select: '-/,+/qty,+/at/city' });
  await Promise.all([whole.ready, part.ready]);
  await client.publish('orders', { id: 'sel', qty: 1, note: 'x', at: { city: 'Rome', zip: 1 } }, { ack: 'persisted' });
  await until(part, () => part.has('sel'));
  await client.deltaPublish('orders', { id: 'sel', qty: 2, note: 'y', at: { zip: 2 } }, { ack: 'persisted' });
  await until(part, () => part.get('sel').qty === 2);
  await until(whole, () => whole.get('sel')?.qty === 2);
  assert.deepEqual(part.get('sel'), { id: 'sel', qty: 2, at: { city: 'Rome' } });
  assert.deepEqual(whole.get('sel'), { id: 'sel', qty: 2, note: 'y', at: { city: 'Rome', zip: 2 } });
  await client.publish('orders', { id: 'sel', qty: 4, at: 5 }, { ack: 'persisted' });
  await until(part, () => part.get('sel').qty === 4);
  await until(whole, () => whole.get('sel').qty === 4);
  assert.deepEqual([part.get('sel'), whole.get('sel')], [{ id: 'sel', qty: 4 }, { id: 'sel', qty: 4, at: 5 }]);
  await part.replace({ select: '-/,+/note' });
  await client.deltaPublish('orders', { id: 'sel', note: 'z', qty: 3 }, { ack: 'persisted' });
  await until(part, () => part.get('sel')?.note === 'z');
  assert.deepEqual(part.get('sel'), { id: 'sel', note: 'z' });
  client.close();
});

test('a lost connection restores itself and resumes: deltas and removals, no snapshot', async () => {
  const client = await open();
  const other = await open();
  for (const id of ['r1', 'r2', 'r3']) await other.publish('orders', { id, group: 'r', qty: 1 }, { ack: 'persisted' });
  const view = client.view('orders', { filter: "/group = 'r'" });
  await view.ready;
  await until(view, () => view.size === 3 && view.subscription.bookmark);
  const states = [];
  const changes = [];
  client.addEventListener('state', (event) => states.push(event.state));
  view.addEventListener('change', (event) => changes.push(...event.changes));
  const mine = sockets.find((socket) => socket.readyState === 1);
  mine.close();
  await other.deltaPublish('orders', { id: 'r1', qty: 2 }, { ack: 'persisted' });
  await other.sowDelete('orders', { key: 'r2', ack: 'persisted' });
  await until(view, () => view.size === 2 && view.get('r1').qty === 2);
  assert.deepEqual(changes.map(({ type, key }) => `${type} ${key}`).sort(), ['remove r2', 'update r1']);
  assert.deepEqual(states, ['waiting', 'connecting', 'open']);
  client.close();
  other.close();
});

test('a token is renewed through its function, on the same connection', async () => {
  let given = 0;
  const client = await open({ token: async () => `token-${(given += 1)}`, renewAfter: 0.05 });
  const socket = sockets.at(-1);
  const view = client.view('orders', { filter: "/id = 'renewed'" });
  await view.ready;
  while (given < 3) await new Promise((done) => setTimeout(done, 10));
  await client.publish('orders', { id: 'renewed' }, { ack: 'persisted' });
  await until(view, () => view.size === 1);
  assert.equal(sockets.at(-1), socket);
  client.close();
});

test('an async iterator has each change', async () => {
  const client = await open();
  const view = client.view('orders', { filter: "/id = 'i'" });
  await view.ready;
  const iterator = view[Symbol.asyncIterator]();
  const next = iterator.next();
  await client.publish('orders', { id: 'i', n: 1 }, { ack: 'persisted' });
  const { value } = await next;
  assert.equal(value.type, 'add');
  assert.deepEqual(value.record, { id: 'i', n: 1 });
  client.close();
  assert.equal((await iterator.next()).done, true);
});

test('errors say what is wrong, with the place of a filter', async () => {
  const client = await open();
  await assert.rejects(client.view('orders', { filter: '/qty >' }).ready, (error) => {
    assert.ok(error instanceof SowstreamError);
    assert.equal(error.reason, 'bad_filter');
    assert.equal(error.column, 7);
    return true;
  });
  assert.throws(() => client.view('orders', { colour: 1 }), /no option colour/);
  client.close();
});

test('a query returns its records and ends', async () => {
  const client = await open();
  await client.publish('orders', { id: 'q', kind: 'query' }, { ack: 'persisted' });
  const rows = await client.sow('orders', { filter: "/kind = 'query'" });
  assert.deepEqual(rows.map((row) => row.data), [{ id: 'q', kind: 'query' }]);
  client.close();
});

test('a later delta does not change a delta that was merged before', () => {
  const [record, first] = [{ id: 1 }, { n: { x: 1 } }];
  merge(record, first);
  merge(record, { n: { x: 2 } });
  assert.deepEqual([record, first], [{ id: 1, n: { x: 2 } }, { n: { x: 1 } }]);
});

test('merging keeps to the record: no prototype is reached', () => {
  const record = merge({ a: { b: 1 } }, JSON.parse('{"a": {"c": 2}, "__proto__": {"polluted": 1}}'));
  assert.deepEqual(record.a, { b: 1, c: 2 });
  assert.equal({}.polluted, undefined);
});

test('a command that is sent again says that it is a duplicate', async () => {
  const client = await open({ name: 'numbered' });
  const send = (sequence) => client.publish('orders', { id: 'numbered', qty: 1 }, { ack: 'persisted', sequence });
  assert.deepEqual([(await send(1)).duplicate, (await send(1)).duplicate, (await send(2)).duplicate], [false, true, false]);
  client.close();
});
