"""Two single figures behind results/capture.md, on a CUDA GPU: reading attention out, and rollout at 896 px.

    python benchmarks/read_out.py

One block of ViT-B/16 (12 heads, 197 tokens, batch 64, bf16): the fused kernel applied to the identity, beside a product
and a softmax, each replayed from a graph; errors against float64. Then the peak memory of rollout of ViT-S at 896 px.
"""

import statistics

import torch

from vitreous import ViT, variant
from vitreous.inside.capture import padded_identity, read_out
from vitreous.inside.rollout import rollout_map
from vitreous.models.hooks import scaled


def replayed(function, rounds: int = 50) -> float:
    """Median microseconds of a graph's replay."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    qkv = torch.randn(64, 197, 3, 12, 64, device="cuda", dtype=torch.bfloat16)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    identity = padded_identity(k)
    ways = {
        "product and softmax": lambda q: (scaled(q) @ k.transpose(-2, -1)).softmax(dim=-1),
        "kernel on the identity": lambda q: read_out(q, k, identity),
    }
    exact = (scaled(q.double()) @ k.double().transpose(-2, -1)).softmax(dim=-1)
    for name, way in ways.items():
        error = (way(q).double() - exact).abs().max().item()
        times = [replayed(lambda rows=rows, way=way: way(rows)) for rows in (q, q[:, :, :1])]
        print(f"{name:<24} whole matrix {times[0]:6.1f} µs, class row {times[1]:6.1f} µs, largest error {error:.5f}")

    model = ViT(variant("vit_small_patch16_224", image_size=896)).eval().cuda()
    x = torch.randn(1, 3, 896, 896, device="cuda")
    peaks = []
    for run in (model, lambda x: rollout_map(model, x)):
        run(x)
        torch.cuda.reset_peak_memory_stats()
        run(x)
        peaks.append(torch.cuda.max_memory_allocated())
    print(f"rollout of ViT-S at 896 px, fp32: {(peaks[1] - peaks[0]) / 2**20:.0f} MiB beyond the plain pass's peak")


if __name__ == "__main__":
    main()
