// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>

#include "../command_line.hpp"
#include "layers/learning_rate.hpp"
#include "schedules.hpp"

namespace gpt {

namespace {

using cli::refuse;
using cli::require;

}  // namespace

void Settings::check() const {
  require("--layers", layers, 1, 1000);
  require("--width", width, 1, 16384);
  require("--heads", heads, 1, width);
  if (width % heads != 0)
    refuse("--width " + std::to_string(width) + " cannot be shared by --heads " +
           std::to_string(heads) + "; use a multiple of it, such as " +
           std::to_string((width / heads + 1) * heads));
  require("--context", context, 1, 65536);
  require("--steps", steps, 1, 1'000'000'000);
  require("--batch", batch, 1, 1'000'000);
  require("--warm-up", warmup, 0, 1'000'000'000);
  cli::require_positive("--rate", rate);
  cli::require_positive("--clip", clip);
  require("--stages", stages, 1, 1'000'000);
  if (stages > chain())
    refuse("--stages " + std::to_string(stages) + " is more than the " + std::to_string(chain()) +
           " layers to cut (embedding, two halves of " + stagger::counted(layers, "block") +
           ", head); use at most " + std::to_string(chain()) + ", or more --layers");
  require("--microbatches", microbatches, 1, 1'000'000);
  if (microbatches > batch)
    refuse("--microbatches " + std::to_string(microbatches) +
           " leaves some without a sequence; use at most --batch " + std::to_string(batch) +
           ", or a larger batch");
  require("--chunks", chunks, 1, 1'000'000);
  if (stages % chunks != 0)
    refuse("--stages " + std::to_string(stages) + " cannot be shared by ranks of " +
           std::to_string(chunks) + ", as --schedule " + schedule +
           " has them; use a multiple of " + std::to_string(chunks) + ", or other --chunks");
  auto const table = Schedule::named(schedule, chunks, microbatches)
                         .table({.ranks = static_cast<int>(ranks()),
                                 .microbatches = static_cast<int>(microbatches),
                                 .chunks = static_cast<int>(chunks)});
  if (compare && gradient_order(table) == GradientOrder::mixed)
    refuse("--compare cannot follow --schedule " + schedule +
           ", whose stages do not add their gradients in one order; leave --compare out");
  require("--replicas", replicas, 1, 1000);
  require("--tensor-parallel", tensor_parallel, 1, heads);
  if (batch / microbatches < ranks_of_row())
    refuse((tensor_parallel == 1 ? "--replicas " + std::to_string(replicas) + " leaves"
            : replicas == 1 ? "--tensor-parallel " + std::to_string(tensor_parallel) + " leaves"
                            : "--replicas " + std::to_string(replicas) + " of --tensor-parallel " +
                                  std::to_string(tensor_parallel) + " leave") +
           " some without a sequence of " +
           (microbatches == 1 ? "the microbatch"
                              : "each of " + stagger::counted(microbatches, "microbatch")) +
           "; use a --batch of at least " + std::to_string(ranks_of_row() * microbatches) +
           ", or fewer --microbatches");
  if (tensor_parallel > 1 && precision == "bf16")
    refuse("--tensor-parallel " + std::to_string(tensor_parallel) +
           " cannot go with --precision bf16, in which terms are not added up; use fp32 or tf32");
  if (compare && tensor_parallel > 1 && !on_gpu())
    refuse("--compare cannot follow --tensor-parallel " + std::to_string(tensor_parallel) +
           ", which adds up terms in an order of its own; leave one out");
  if (compare && replicas > 1 && !on_gpu())
    refuse("--compare cannot follow --replicas " + std::to_string(replicas) +
           ", which add up the gradients of their own sequences first; leave one out");
  if (shard_optimizer && (device != "mpi" || (replicas == 1 && plan.empty())))
    refuse(
        "--shard-optimizer shares AdamW's state out to replicas in several processes; add "
        "--replicas 2 --device mpi, or leave it out: on threads replicas have one state");
  if (device != "threads" && device != "mpi" && device != "cuda")
    refuse("there is no device '" + device + "'; --device knows threads, mpi, cuda");
  if (precision != "fp32" && precision != "tf32" && precision != "bf16")
    refuse("--precision '" + precision + "' is unknown; use fp32, tf32 or bf16");
  if (!on_gpu() && (precision != "fp32" || graph))
    refuse("--precision and --graph are for a GPU; add --device cuda, or leave them out");
  require("--seed", seed, 0, std::numeric_limits<std::int64_t>::max());
  require("--threads", threads, 1, 1024);
  require("--every", checkpoint_every, 1, 1'000'000'000);
  require("--stop-at", stop_at, 0, 1'000'000'000);
  require("--sample", sample, 0, 1'000'000);
  if (resume && checkpoint.empty())
    refuse("--resume needs the folder to resume from; add --checkpoint DIR");
  if (prompt && prompt->empty() && sample > 0)
    refuse("--prompt '' gives the sample nothing to begin with; use 1 byte or more");
}

double Settings::rate_at(std::int64_t step) const {
  return layers::cosine_rate(rate, step, warmup, steps);
}

std::optional<Settings> parse(int argc, char const* const* argv) {
  Settings s;
  CLI::App app{"Trains a small transformer on text, byte by byte, in a pipeline of stages.", "gpt"};
  cli::prepare(app);

  char const* group = "The model";
  app.add_option("--layers", s.layers, "Transformer blocks")->group(group);
  app.add_option("--width", s.width, "Numbers per byte between layers; a multiple of --heads")
      ->group(group);
  app.add_option("--heads", s.heads, "Attention heads")->group(group);
  app.add_option("--context", s.context, "Bytes that a prediction may look back on")->group(group);

  group = "Training";
  app.add_option("--text", s.text,
                 "Files to learn from; left out: the headers and documents of stagger itself")
      ->type_name("FILE")
      ->default_str("")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_option("--steps", s.steps, "Optimizer steps")->group(group);
  app.add_option("--batch", s.batch, "Sequences per step")->group(group);
  app.add_option("--rate", s.rate, "Highest learning rate; a cosine leads from it to a tenth")
      ->group(group);
  app.add_option("--warm-up", s.warmup, "Steps until the rate has risen to its highest")
      ->group(group);
  app.add_option("--clip", s.clip, "Highest norm of all gradients together")->group(group);
  app.add_option("--seed", s.seed, "Seed of everything random")->group(group);

  group = "The pipeline";
  app.add_option("--stages", s.stages,
                 "Stages to cut the layers into; a rank runs one, or --chunks of them")
      ->group(group);
  app.add_option("--microbatches", s.microbatches,
                 "Parts of a batch that follow each other through the stages")
      ->group(group);
  app.add_option("--schedule", s.schedule, "Order of forward and backward: " + schedule_names())
      ->group(group);
  app.add_option("--chunks", s.chunks,
                 "Stages that each rank runs; 0: as many as are usual for the schedule, 1 or 2")
      ->group(group);
  app.add_option("--replicas", s.replicas,
                 "Ranks that share each stage, each with its sequences of every microbatch")
      ->group(group);
  app.add_option("--tensor-parallel", s.tensor_parallel,
                 "Ranks that share the blocks of each stage, and of each of its --replicas: each "
                 "has some of the heads and some of the hidden features")
      ->group(group);
  app.add_flag("--shard-optimizer", s.shard_optimizer,
               "With --replicas and --device mpi: each replica keeps the optimizer's state of its "
               "part of each layer alone")
      ->group(group);
  app.add_option("--device", s.device,
                 "Where ranks run: threads; mpi, in the processes that mpirun started; cuda, as "
                 "streams of a GPU")
      ->group(group);
  app.add_option("--threads", s.threads,
                 "Threads to run the ranks; 0: one for each, as far as there are processors. With "
                 "--plan on a GPU: GPUs like it to plan for; 0: one")
      ->group(group);
  app.add_option("--precision", s.precision,
                 "Products of a GPU: fp32, tf32, or bf16 with parameters in fp32")
      ->group(group);
  app.add_flag("--graph", s.graph, "On a GPU, record a step as a graph and replay it")
      ->group(group);
  app.add_flag("--recompute", s.recompute,
               "Keep only the inputs of stages and run forward again before backward")
      ->group(group);
  app.add_flag("--compare", s.compare,
               "Train on one device as well and demand bit-equal parameters after every step; of a "
               "GPU, the host's loss and gradients within a tolerance")
      ->group(group);

  app.add_option("--plan", s.plan,
                 "Let measured times of the layers choose stages, replicas, microbatches and "
                 "recomputation for --threads: auto, or a FILE with a plan")
      ->type_name("auto|FILE")
      ->group(group);
  app.add_option("--profile", s.profile,
                 "Measure each layer on --device, write the profile for 'stagger plan', and end")
      ->type_name("FILE")
      ->group(group);

  group = "What is kept";
  app.add_option("--checkpoint", s.checkpoint,
                 "Folder for checkpoints; the last two are kept; left out: none")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--every", s.checkpoint_every, "Steps from one checkpoint to the next")
      ->group(group);
  app.add_flag("--resume", s.resume,
               "Go on from the newest checkpoint, as if the run had never stopped")
      ->group(group);
  app.add_option("--stop-at", s.stop_at,
                 "End after this step, as if interrupted; 0: run to the end")
      ->group(group);
  app.add_option("--output", s.output,
                 "Folder for trace.json and timeline.svg; none: write neither")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--sample", s.sample, "Bytes of text to write at the end")->group(group);
  app.add_option("--prompt", s.prompt,
                 "How that text begins; left out: as a comment where the text is code, else by its "
                 "first word")
      ->default_str("")
      ->type_name("TEXT")
      ->group(group);
  app.footer(
      "Results go to standard output, progress and warnings to standard error. Exit code 1: "
      "--compare found a\n"
      "difference. 2: something that was given cannot be used. 130: interrupted.");

  if (!cli::parsed(app, argc, argv)) return std::nullopt;
  if (!s.plan.empty()) {
    for (char const* flag : {"--stages", "--microbatches", "--schedule", "--chunks", "--recompute",
                             "--profile", "--replicas", "--tensor-parallel"})
      if (app.count(flag) > 0)
        refuse(std::string("--plan ") + s.plan + " cannot go with " + flag +
               (std::string(flag) == "--profile" ? ", which ends before training; leave one out"
                                                 : ", which the plan says; leave one out"));
    if (s.over_mpi())
      refuse(
          "--plan cannot go with --device mpi, whose processes would measure and plan each for "
          "itself; give the flags that a plan says");
    s.stages = s.microbatches = 1;  // placeholders until there is a plan
  }
  if (s.chunks == 0) s.chunks = Schedule::named(s.schedule, 0, 1).chunks();
  if (s.threads == 0) {
    std::int64_t const processors = std::max(1U, std::thread::hardware_concurrency());
    bool const planned = !s.plan.empty();
    s.threads = planned ? (s.on_gpu() ? 1 : processors)
                        : std::clamp<std::int64_t>(s.chunks > 0 ? s.ranks() * s.ranks_of_row() : 1,
                                                   1, processors);
  }
  s.check();
  return s;
}

namespace {

/// Replaces names of the library in an error message by the flags of this program.
std::string in_flags(std::string sentence) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> flags{{
      {"use host::Threads", "use --device threads"},
      {"raise Options::deadline_s if an action may take that long",
       "use more --microbatches if an action may take that long"},
      {"raise Options::deadline_s if a step may take that long",
       "use a smaller --batch if a step may take that long"},
      {"choose a device below cuda::device_count()", "choose one by CUDA_VISIBLE_DEVICES"},
      {"leave partition::LayerSplit out", "leave --tensor-parallel out"},
      {"give Options::replicas", "give --replicas"},
      {"Options::replicas", "--replicas"},
      {"Options::recompute", "--recompute"},
      {"Options::clip_norm", "--clip"},
      {"Options::seed", "--seed"},
  }};
  for (auto const& [from, to] : flags)
    for (std::size_t at = 0; (at = sentence.find(from, at)) != std::string::npos; at += to.size())
      sentence.replace(at, from.size(), to);
  return sentence;
}

}  // namespace

void print_error(std::exception const& error) {
  if (dynamic_cast<std::bad_alloc const*>(&error) != nullptr)
    std::fputs(
        "gpt: there is not enough memory; use a smaller --width, --layers, --context or --batch\n",
        stderr);
  else
    std::fprintf(stderr, "gpt: %s\n", stagger::printable(in_flags(error.what())).c_str());
}

namespace {

/// Parses "batch 8, rate 0.5" into names and values.
std::vector<std::pair<std::string, std::string>> named_values(std::string const& list) {
  std::vector<std::pair<std::string, std::string>> all;
  for (std::size_t begin = 0; begin < list.size();) {
    std::size_t const end = std::min(list.find(", ", begin), list.size());
    std::string const one = list.substr(begin, end - begin);
    std::size_t const blank = one.rfind(' ');
    all.emplace_back(one.substr(0, blank), blank == std::string::npos ? "" : one.substr(blank + 1));
    begin = end + 2;
  }
  return all;
}

/// The shortest decimal that reads back as the same number.
std::string shortest(std::string const& value) {
  double number = 0;
  char const* const end = value.data() + value.size();
  auto const [stop, error] = std::from_chars(value.data(), end, number);
  bool const real = value.find_first_of(".e") != std::string::npos;
  return real && error == std::errc{} && stop == end ? stagger::report::format_shortest(number)
                                                     : value;
}

}  // namespace

std::string differences(std::string const& before, std::string const& now) {
  auto const old_ones = named_values(before);
  auto const new_ones = named_values(now);
  auto const value = [](auto const& all, std::string const& name) -> std::string const* {
    for (auto const& one : all)
      if (one.first == name) return &one.second;
    return nullptr;
  };
  std::string words;
  auto const add = [&](std::string const& one) { words += (words.empty() ? "" : "; ") + one; };
  for (auto const& [name, was] : old_ones) {
    std::string const* const is = value(new_ones, name);
    if (is == nullptr)
      add(name + " " + shortest(was) + ", now not");
    else if (*is != was)
      add(name == "text" ? "another text" : name + " " + shortest(was) + ", now " + shortest(*is));
  }
  for (auto const& [name, is] : new_ones)
    if (value(old_ones, name) == nullptr) add("now " + name + " " + shortest(is));
  return words;
}

}  // namespace gpt
