"""A service on a CPU: prune for onnxruntime, serve both networks, compare answers and time.

    python examples/cpu_service.py               # --small: a short training and a goal in MACs, for the tests

The goal is time, not MACs: 1.3 times as fast in onnxruntime on one thread, for requests of 16 images. Then both
networks are exported, and a web server (standard library, 127.0.0.1 only) answers POST /original and POST /pruned.

It printed, while the machine was busy with other work (which the time of a request includes, the table hardly):

    1.33x as fast in onnxruntime at batch 16 (1.32 to 1.34), 99.44% -> 98.89% test accuracy
    Goal reached: 1.33x as fast in onnxruntime at batch 16, 1.3x asked.
                                     before    after
      ms in onnxruntime at batch 16  4.16      3.11      1.33x (1.32 to 1.34)
      ms in onnxruntime at batch 1   0.272     0.213     1.28x (1.24 to 1.32)
      ms in eager at batch 16        7.24      5.65      1.27x (1.25 to 1.29)
      ms in eager at batch 1         1.03      0.923     1.19x (1.02 to 1.30)
      ms in openvino at batch 16     4.29      4         1.07x (1.06 to 1.08)
      ms in openvino at batch 1      0.345     0.33      not measurable (0.98 to 1.08)
      held-out accuracy              99.31%    99.31%    +0.00 points
      test accuracy                  99.44%    98.89%    -0.56 points
      MACs                           11.94 M   7.48 M    -37.3%
      weights                        74.51 K   44.24 K   -40.6%
      bytes on disk                  301.98 K  180.27 K  -40.3%
    original  99.4% right, 6.0 ms a request (median)
    pruned    98.9% right, 5.3 ms a request (median)
    both give the same answer for 99.4% of the test images
"""

import json
import statistics
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime
import torch

import prunus
from prunus.zoo import data, models

SMALL = "--small" in sys.argv
BATCH = 16

torch.manual_seed(0)
digits = data.load("digits", size=8 if SMALL else 32)
train, holdout, test = (digits.loader(part, BATCH, shuffle=part == "train") for part in ("train", "holdout", "test"))
model = models.create("resnet8", num_classes=10, in_channels=1)
model = prunus.fit(model, train, holdout, epochs=2 if SMALL else 6).model.eval()

goal = {"target": 0.5} if SMALL else {"speedup": 1.3}
result = prunus.compress(model, train, holdout, test=test, engine="onnxruntime", batch=BATCH, threads=1, **goal)
print(result)

example = next(iter(test))[0]
sessions = {}
for name, network in {"original": model, "pruned": result.model}.items():
    prunus.export(network, example[:1], f"{name}.onnx", images=example)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions[name] = onnxruntime.InferenceSession(f"{name}.onnx", options, providers=["CPUExecutionProvider"])


class Service(BaseHTTPRequestHandler):
    """POST /NAME with float32 pixels [N, 1, side, side] -> JSON: a class for each image."""

    def do_POST(self):
        session = sessions.get(self.path[1:])
        pixels = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32)
        if session is None or pixels.size % example[0].numel():
            return self.send_error(400, "POST /original or /pruned with whole float32 images")
        logits = session.run(None, {"input": pixels.reshape(-1, *example.shape[1:])})[0]
        self.send_response(200)
        self.end_headers()
        return self.wfile.write(json.dumps(logits.argmax(1).tolist()).encode())

    def log_message(self, *_):
        pass  # no line for each request


def ask(server, name, images):
    """The service's answer, and the seconds that it took."""
    start = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{name}", images.numpy().tobytes()) as answer:
        return json.load(answer), time.perf_counter() - start


answers, seconds = {"original": [], "pruned": []}, {"original": [], "pruned": []}
with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:  # port 0: any that is free
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for images, _ in test:
        for name in answers:  # in turns, so that other work on the machine disturbs both
            found, took = ask(server, name, images)
            answers[name] += found
            seconds[name].append(took)
    server.shutdown()

labels = torch.cat([labels for _, labels in test]).tolist()
for name, found in answers.items():
    right = np.mean(np.equal(found, labels))
    print(f"{name:8}  {right:.1%} right, {1e3 * statistics.median(seconds[name]):.1f} ms a request (median)")
print(f"both give the same answer for {np.mean(np.equal(*answers.values())):.1%} of the test images")
