// Shows what the worker says, a line each. Tests listen to the worker itself.

const log = document.getElementById("log");
const worker = new Worker("worker.js", { type: "module" });
worker.onmessage = ({ data }) => log.append(`${JSON.stringify(data)}\n`);
