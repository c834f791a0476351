// Where the explorer's images come from: samples, files, drops, the clipboard, the camera, an address dropped from another tab.

import { make } from "./dom.js";
import { address, ask, sampleAddress } from "./server.js";

const MOST = 20 * 2 ** 20;
const KEPT = 24; // images of one's own that are kept at hand

export class Images {
  // `choose({ sample } or { image })` shows one; `tell(text, wrong)` says what is going on; `changed(buttons)` when some come or go
  constructor(samples, { strip, choose, tell, changed }) {
    Object.assign(this, { strip, choose, tell, changed, own: [], buttons: new Map() });
    for (const name of samples) this.add(name, sampleAddress(name), name, () => choose({ sample: name }));
  }

  add(key, url, name, onclick) {
    const button = make("button", { class: "thumb", title: name, onclick }, make("img", { src: url, alt: "", width: 56, height: 56 }), make("span", {}, name));
    this.buttons.set(key, button);
    this.strip.append(button);
    this.changed(this.buttons);
  }

  // which of them is shown
  mark(key) {
    for (const [each, button] of this.buttons) button.setAttribute("aria-pressed", String(each === key));
  }

  // { name, blob } of a sample, by its name, or of one's own, by its number
  async get(key) {
    return typeof key === "number" ? this.own[key] : { name: key, blob: await (await ask(`/api/samples/${encodeURIComponent(key)}`)).blob() };
  }

  // some images of one's own: all are kept at hand, the first is shown
  take(files) {
    const found = [...files];
    const images = found.length > 1 ? found.filter(({ type, name }) => type.startsWith("image/") || /\.(hei[cf]|avif|tiff?)$/i.test(name)) : found;
    if (found.length && !images.length) return this.tell(`none of these ${found.length} files is an image`, true);
    let first = null;
    for (const blob of images) {
      const name = blob.name || "pasted image";
      if (blob.size > MOST) {
        this.tell(`${name} has ${(blob.size / 2 ** 20).toFixed(0)} MB: 20 are the most, make it smaller first`, true);
        continue;
      }
      const index = this.own.push({ name, blob }) - 1;
      this.add(index, URL.createObjectURL(blob), name, () => this.choose({ image: index }));
      if (index >= KEPT) this.forget(index - KEPT);
      first ??= index;
    }
    if (first !== null) this.choose({ image: first });
  }

  forget(index) {
    const button = this.buttons.get(index);
    if (!button) return;
    URL.revokeObjectURL(button.querySelector("img").src);
    button.remove();
    this.buttons.delete(index);
    this.own[index] = null;
    this.changed(this.buttons);
  }

  // an image's address, dropped or pasted: this page may ask its own server alone, which fetches it
  async fetch(url) {
    this.tell(`Fetching ${url} …`);
    try {
      const { pathname, hostname } = new URL(url);
      const name = decodeURIComponent(pathname.split("/").pop().replace(/%(?![0-9a-f]{2})/gi, "%25")) || hostname;
      const blob = await (await ask(address("/api/fetch", { url }), " ")).blob();
      this.take([new File([blob], name, { type: blob.type })]);
    } catch (error) {
      this.tell(error.message, true);
    }
  }

  // files, or an address, of a drop or of the clipboard
  transfer(data) {
    if (data.files.length) return this.take(data.files);
    const lines = (data.getData("text/uri-list") || data.getData("text/plain")).split(/\r?\n/).map((line) => line.trim());
    const url = lines.find((line) => /^https?:\/\/\S+$/i.test(line));
    if (url) this.fetch(url);
  }

  listen({ file, drop, camera }) {
    file.addEventListener("change", () => { this.take(file.files); file.value = ""; });
    addEventListener("paste", (event) => { if (!event.target.closest?.("input")) this.transfer(event.clipboardData); });
    for (const kind of ["dragenter", "dragover"]) addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
    addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      this.transfer(event.dataTransfer);
    });
    camera.hidden = !navigator.mediaDevices?.getUserMedia; // a browser gives it to loopback and https alone
    camera.addEventListener("click", () => this.camera());
  }

  async camera() {
    let stream = null;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
    } catch (error) {
      return this.tell(`no camera: ${error.message}`, true);
    }
    const video = make("video", { autoplay: true, playsinline: true, "aria-label": "Camera" });
    video.muted = true;
    video.srcObject = stream;
    const shoot = make("button", { class: "chip do", onclick: async () => {
      const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
      canvas.getContext("2d").drawImage(video, 0, 0);
      const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
      dialog.close();
      this.take([new File([blob], "photo", { type: blob.type })]);
    } }, "Take it");
    const dialog = make("dialog", { class: "camera", "aria-label": "Camera" }, video, make("p", { class: "chips" }, shoot, make("button", { class: "chip", onclick: () => dialog.close() }, "Cancel")));
    dialog.addEventListener("close", () => { stream.getTracks().forEach((track) => track.stop()); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  }
}
