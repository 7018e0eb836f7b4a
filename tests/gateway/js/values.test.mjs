// Tests of the values of the JavaScript client in Node, against the gateway at GATEWAY_URL; run by test_javascript.py.
import assert from 'node:assert/strict';
import test from 'node:test';
import { createContext, runInContext } from 'node:vm';

import { connect, Decimal, merge, parse, SowstreamError, stringify } from '../../../processor/gateway/web/sowstream.js';

const url = process.env.GATEWAY_URL;
const RECORD = process.env.RECORD;
const open = (settings = {}) => connect({ url, backoffMin: 10, backoffMax: 50, ...settings });

test('a text is written as it was read', () => {
  const texts = [
    RECORD, '1', '-0.0', '1.5', '9007199254740991', '9007199254740992', '-9007199254740993', '1e+21', '1.152921504606847e+18',
    '100000000000000000000', '0.1', '0.30000000000000004', '0.3000000000000000444', '5e-324', '1E-400', '1e400', '-1e400',
    '"0.1234567890123456789"', '"a\\"9007199254740993"', '["1.2.3.4.5.6.7.8.9.10.11.12"]', '{"9007199254740993":9007199254740993}',
    '["\\\\",9007199254740993,"\\\\\\"",0.1234567890123456789]', '[[],{},"",null,true,false]', '{"__proto__":{"a":9007199254740993}}',
  ];
  for (const text of texts) assert.equal(stringify(parse(text)), text);
});

test('random numbers keep their value, and are numbers where JavaScript holds them', () => {
  let seed = 20261127;
  const random = (below) => { seed = (seed * 1103515245 + 12345) % 2147483648; return (seed >> 12) % below; };
  for (let turn = 0; turn < 20000; turn += 1) {
    const digits = (count) => Array.from({ length: count }, () => random(10)).join('');
    const whole = random(2) ? String(1 + random(9)) + digits(random(24)) : '0';
    const part = random(2) ? `.${digits(1 + random(24))}` : '';
    const power = random(4) ? '' : `e${random(2) ? '-' : ''}${random(400)}`;
    const literal = `${random(2) ? '-' : ''}${whole}${part}${power}`;
    const value = parse(`[${literal}]`)[0];
    const written = stringify(value);
    assert.equal(new Decimal(literal).compare(new Decimal(written)), 0, literal);
    if (typeof value !== 'number') assert.equal(written, literal);
    if (!part && !power && whole.length < 16) assert.equal(typeof value, 'number');
    if (typeof value === 'number' && !part && !power) assert.ok(Number.isSafeInteger(value), literal);
  }
});

test('a long row of digits is read in a moment, as a number and within a text', () => {
  const began = performance.now();
  for (const literal of [`1.${'0'.repeat(60000)}1`, `1.${'0'.repeat(60000)}`, '9'.repeat(60000)]) {
    assert.equal(parse(`{"note":"${literal}"}`).note, literal);
    assert.equal(new Decimal(stringify(parse(literal))).compare(literal), 0);
  }
  assert.ok(performance.now() - began < 5000);
});

test('a Decimal prints, compares and counts', () => {
  const price = new Decimal('12345678901234567890.12');
  assert.equal(`${price}`, '12345678901234567890.12');
  assert.equal('' + price, '12345678901234567890.12');
  assert.equal(JSON.stringify({ price }), '{"price":"12345678901234567890.12"}');
  assert.equal(price * 2, 24691357802469135780);
  const order = ['-1e400', '-2.5', '-2', '-0.1234567890123456789', '0', '1E-400', '0.1234567890123456788', '0.1234567890123456789', '2', '10', '1e400'];
  for (const [one, left] of order.entries()) {
    for (const [two, right] of order.entries()) assert.equal(Math.sign(new Decimal(left).compare(new Decimal(right))), Math.sign(one - two));
  }
  assert.equal(new Decimal('1.50').compare(1.5), 0);
  assert.equal(new Decimal('100').compare(100n), 0);
  assert.ok(Number.isNaN(price.compare('x')));
  for (const text of ['', 'x', '1.', '.5', '01', 'NaN', 'Infinity', '0x10', '1_0', ' 1']) {
    assert.throws(() => new Decimal(text), SowstreamError);
  }
});

test('what JSON does not have is refused at the call, with its place', async () => {
  const client = await open();
  class Own { field = 1; }
  const cycle = {};
  cycle.again = cycle;
  let deep = {};
  for (let level = 0; level < 64; level += 1) deep = { deep };
  const bad = {
    NaN, Infinity: -Infinity, undefined, Map: new Map([[1, 2]]), Set: new Set(), Date: new Date(0), function: () => 1, symbol: Symbol('s'),
    surrogate: 'a\ud800b', hole: [1, , 3], own: new Own(), boxed: new Number(1), bytes: new Uint8Array(2), cycle, deep, name: { '\udc00': 1 },
    promise: Promise.resolve(1), error: new Error('x'), expression: /x/, big: Object(1n),
  };
  for (const [name, value] of Object.entries(bad)) {
    for (const call of [
      () => client.publish('orders', { id: 'bad', in: [value] }, { ack: 'persisted' }), () => client.deltaPublish('orders', { id: 'bad', in: [value] }),
      () => client.sowDelete('orders', { data: { id: 'bad', in: [value] } }),
    ]) {
      await assert.rejects(call(), (error) => error instanceof SowstreamError && error.reason === 'undecodable' && error.message.startsWith('/in/0'), name);
    }
  }
  await assert.rejects(client.publish('orders', undefined), /undefined is not a JSON value/);
  await assert.rejects(client.publish('orders', { id: 'bad' }, { expiration: NaN }), /expiration: NaN/);
  await assert.rejects(client.publish('orders', { id: 'bad' }, { key: '\ud800' }), /key: half/);
  assert.deepEqual(await client.sow('orders', { filter: "/id = 'bad'" }), []);
  client.close();
});

test('a record that is larger than the gateway takes is refused at the call, and the connection goes on', async () => {
  const client = await open();
  const limit = Number(process.env.MESSAGE_BYTES);
  for (const text of ['a'.repeat(limit), '€'.repeat(Math.ceil(limit / 3))]) {
    await assert.rejects(client.publish('orders', { id: 'large', text }, { ack: 'persisted' }), (error) => error.reason === 'too_large');
  }
  await client.publish('orders', { id: 'large', text: 'a'.repeat(limit - 200) }, { ack: 'persisted' });
  assert.equal(client.state, 'open');
  client.close();
});

test('a record goes round with every digit: publish, query, view, shared messages, delta', async () => {
  const client = await open();
  const other = client.view('orders', { filter: "/id = 'x'", select: '-/,+/id,+/long,+/big' });
  await client.publish('orders', parse(RECORD), { ack: 'persisted' });
  const [row] = await client.sow('orders', { filter: '/big = 9007199254740993' });
  assert.equal(stringify(row.data), RECORD);
  assert.equal(row.data.big, 9007199254740993n);
  assert.ok(row.data.price instanceof Decimal);
  const view = client.view('orders', { filter: "/id = 'x'" });
  await view.ready;
  assert.equal(stringify(view.get('x')), RECORD);
  const changed = new Promise((done) => { view.addEventListener('change', done, { once: true }); });
  await client.deltaPublish('orders', { id: 'x', long: new Decimal('0.9876543210987654321') }, { ack: 'persisted' });
  await changed;
  const wanted = RECORD.replace('"long":0.1234567890123456789,"price"', '"long":0.9876543210987654321,"price"');
  assert.equal(stringify(view.get('x')), wanted);
  await other.ready;
  assert.equal(`${other.get('x').long} ${other.get('x').big}`, '0.9876543210987654321 9007199254740993');
  await client.publish('orders', view.get('x'), { ack: 'persisted' });
  assert.equal(stringify((await client.sow('orders', { filter: "/id = 'x'" }))[0].data), wanted);
  client.close();
});

test('objects of another realm are plain, and merging replaces a Decimal as a value', () => {
  const plain = runInContext('({ a: [1, { b: 2 }] })', createContext({}));
  assert.equal(stringify(plain), '{"a":[1,{"b":2}]}');
  const map = runInContext('new Map()', createContext({}));
  assert.throws(() => stringify(map), SowstreamError);
  const record = merge({ px: new Decimal('1e400'), in: { a: 1n } }, { px: new Decimal('2e400'), in: { b: new Decimal('3e400') } });
  assert.equal(stringify(record), '{"px":2e400,"in":{"a":1,"b":3e400}}');
});
