/* The engine in WebAssembly: one network, one image at a time. */
class Engine {
  /* wasm and block are Uint8Arrays: engine.wasm, and the plan as runtime/export/web/plan.py writes it. */
  static async load(wasm, block) {
    const imports = { page: { milliseconds: () => performance.now() } };
    const { instance } = await WebAssembly.instantiate(wasm, imports);
    const place = instance.exports.reserve(block.length) >>> 0;
    if (!place) throw new Error("there is no memory for the network");
    new Uint8Array(instance.exports.memory.buffer).set(block, place);
    const reason = instance.exports.load(place) >>> 0;
    if (reason) throw new Error(Engine.#text(instance.exports.memory, reason));
    return new Engine(instance.exports, Number(new DataView(block.buffer, block.byteOffset).getBigInt64(40, true)));
  }

  constructor(functions, classes) {
    this.functions = functions;
    this.classes = classes;
  }

  static #text(memory, place) {
    const bytes = new Uint8Array(memory.buffer, place);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  /* Return the logits of an image, channel by channel: a Uint8Array of pixels, or a Float32Array normalized before. */
  run(image) {
    const { memory, image: place, answer, run_bytes, run_floats } = this.functions;
    const bytes = new Uint8Array(image.buffer, image.byteOffset, image.byteLength);
    new Uint8Array(memory.buffer).set(bytes, place() >>> 0);
    if (image instanceof Float32Array ? run_floats() : run_bytes()) throw new Error("there is no memory for a run");
    return new Float32Array(memory.buffer, answer() >>> 0, this.classes).slice();
  }
}
