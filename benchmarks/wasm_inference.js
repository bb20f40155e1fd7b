/* Engines in node, for wasm_inference.py: reads lines "NAME ENGINE MILLISECONDS", prints milliseconds of CPU time an image.
 *
 * node wasm_inference.js WEB FOLDER: WEB holds engine.js and engine.wasm; FOLDER, for each NAME, NAME.block (the plan),
 * NAME.bytes and NAME.floats (one image), NAME.json (its shape), NAME-fp32.onnx and NAME-int8.onnx. */
const fs = require("fs"), readline = require("readline");
const ort = require("onnxruntime-web/wasm");
const [web, folder] = process.argv.slice(2);
const Engine = new Function(fs.readFileSync(`${web}/engine.js`, "utf8") + "; return Engine;")();
const bytesOf = (name) => new Uint8Array(fs.readFileSync(`${folder}/${name}`));
const made = {};
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

async function make(name, engine) {
  if (engine === "equalbits") {
    const ours = await Engine.load(fs.readFileSync(`${web}/engine.wasm`), bytesOf(`${name}.block`)), image = bytesOf(`${name}.bytes`);
    return () => ours.run(image);
  }
  const session = await ort.InferenceSession.create(bytesOf(`${name}-${engine}.onnx`), { executionProviders: ["wasm"] });
  const shape = JSON.parse(fs.readFileSync(`${folder}/${name}.json`, "utf8"));
  const images = new ort.Tensor("float32", new Float32Array(bytesOf(`${name}.floats`).buffer), shape);
  return async () => (await session.run({ images })).logits.data;
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, engine, milliseconds] = line.split(" "), key = `${name} ${engine}`;
    const run = (made[key] ??= await make(name, engine));
    const logits = Array.from(await run());
    const start = process.cpuUsage();
    let runs = 0, taken = 0;
    for (; taken < milliseconds; runs++) {
      const answer = run();
      if (answer instanceof Promise) await answer;
      const { user, system } = process.cpuUsage(start);
      taken = (user + system) / 1000;
    }
    console.log(JSON.stringify({ ms: taken / runs, logits }));
  }
})();
