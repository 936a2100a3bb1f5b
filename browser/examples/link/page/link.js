// Hands the ticket to the worker, and shows what went wrong there.

const worker = new Worker("worker.js", { type: "module" });
worker.onmessage = ({ data }) => (document.getElementById("log").textContent = data.message);
worker.postMessage(location.hash.slice(1));
