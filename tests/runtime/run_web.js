/* node run_web.js WEB FOLDER: run NAME.block on NAME.images (float32, or uint8 in NAME.bytes), write NAME.logits. */
const fs = require("fs");
const [web, folder] = process.argv.slice(2);
const Engine = new Function(fs.readFileSync(`${web}/engine.js`, "utf8") + "; return Engine;")();

(async () => {
  const wasm = fs.readFileSync(`${web}/engine.wasm`);
  for (const file of fs.readdirSync(folder).filter((file) => file.endsWith(".block"))) {
    const path = `${folder}/${file.slice(0, -6)}`;
    const engine = await Engine.load(wasm, new Uint8Array(fs.readFileSync(`${path}.block`)));
    const asBytes = fs.existsSync(`${path}.bytes`);
    const raw = new Uint8Array(fs.readFileSync(asBytes ? `${path}.bytes` : `${path}.images`));
    const images = asBytes ? raw : new Float32Array(raw.buffer);
    const count = Number(fs.readFileSync(`${path}.count`, "utf8"));
    const size = images.length / count;
    const logits = [];
    for (let i = 0; i < count; i++) logits.push(...engine.run(images.slice(i * size, (i + 1) * size)));
    fs.writeFileSync(`${path}.logits`, new Uint8Array(Float32Array.from(logits).buffer));
  }
})();
