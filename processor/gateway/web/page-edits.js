// The edits of the page: each is a delta on the condition of the record's version, and can be undone.
import { nested, quoted, typed, valueAt } from './page-cells.js';
import { SowstreamError, stringify } from './sowstream.js';

const TRIES_MAX = 5;

export class Edits {
  #publish; #read; #undone = []; #changed;

  /**
   * @param {(data: object, options: object) => Promise<object>} publish publishes to the topic
   * @param {(filter: string) => Promise<object[]>} read reads records of the topic
   * @param {() => void} changed called after each edit
   */
  constructor(publish, read, changed) {
    this.#publish = publish;
    this.#read = read;
    this.#changed = changed;
    /** The number of edits that were made. */
    this.count = 0;
  }

  get canUndo() { return this.#undone.length > 0; }

  forget() { this.#undone = []; this.#changed(); }

  /** Write one field of a record that is there: with its version, so that one which was deleted meanwhile stays so. */
  async #write(key, path, value, version) {
    for (let expected = version, tries = 1; ; tries += 1) {
      try {
        await this.#publish(nested(path, value), { allowMerge: true, key, expectVersion: expected, ack: 'processed' });
        this.count += 1;
        return;
      } catch (error) {
        expected = error.ack?.version;
        if (error.reason !== 'conflict' || tries === TRIES_MAX) throw error;
        if (!expected) throw new SowstreamError('conflict', 'The record was deleted meanwhile.');
      }
    }
  }

  /** Write the value that a text stands for, of the kind of the value that the cell holds. */
  async save({ key, path, text, held, version }) {
    const value = typed(text, held);
    await this.#write(key, path, value, version);
    this.#undone.push({ key, path, value, held });
    this.#changed();
  }

  /** Write back what stood in a cell before the last edit, if it still has the value of that edit. */
  async undo() {
    const edit = this.#undone.pop();
    this.#changed();
    if (!edit) return;
    const { key, path, value, held } = edit;
    const name = `${path.slice(1)} of ${key}`;
    const [row] = await this.#read(`SOW_KEY() = ${quoted(key)}`);
    if (!row) throw new SowstreamError('conflict', 'The record was deleted meanwhile.');
    if (stringify([valueAt(row.data, path) ?? null]) !== stringify([value])) throw new SowstreamError('conflict', `${name} was changed by another one meanwhile.`);
    if (held === undefined) throw new SowstreamError('conflict', `${name} was not there before, and a delta removes no field.`);
    await this.#write(key, path, held, row.version);
  }
}
