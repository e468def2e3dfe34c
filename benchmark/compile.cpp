// SPDX-License-Identifier: Apache-2.0
// Processor time and peak memory of the compiler, at -O2, for a program with a pipeline:
// header-only, and with the engine compiled separately (STAGGER_SEPARATE_COMPILATION), compared
// with including oneTBB's pipeline, whose engine is a library; and for proofs of schedules at
// compile time.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/rows.hpp"

namespace {

constexpr int repetitions = 3;
constexpr int stage_counts[] = {4, 16, 64};

/// A temporary folder, removed at the end of the program.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "stagger-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  [[nodiscard]] std::filesystem::path const& path() const { return path_; }

 private:
  std::filesystem::path path_ = ".";
};

struct Cost {
  bool compiled = false;
  double processor_s = 0;
  double memory_mib = 0;
};

std::string const separate = "#define STAGGER_SEPARATE_COMPILATION\n";

Cost compile(std::filesystem::path const& source, char const* compiler) {
  std::string const output = source.string() + ".o";
  std::vector<char const*> words = {compiler, "-std=c++20",   "-O2", "-I" BENCH_INCLUDE,
                                    "-c",     source.c_str(), "-o",  output.c_str(),
                                    nullptr};
  pid_t const child = ::fork();
  if (child == 0) {
    ::execvp(words[0], const_cast<char**>(words.data()));
    ::_exit(127);
  }
  Cost cost;
  int status = 0;
  rusage usage{};
  if (child < 0 || ::wait4(child, &status, 0, &usage) != child) return cost;
  auto const seconds = [](timeval const& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  cost.compiled = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  cost.processor_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  cost.memory_mib = static_cast<double>(usage.ru_maxrss) / 1024;
  return cost;
}

/// A typical user's program: several stage types, a loss, an optimizer, two threads, one step.
std::string pipeline(int stages) {
  std::string code = "#include <stagger/stagger.hpp>\n\n";
  for (int s = 0; s < stages; ++s) {
    std::string const name = "Stage" + std::to_string(s);
    code +=
        "struct " + name +
        " {\n"
        "  using Input = stagger::Tensor<>;\n"
        "  using Output = stagger::Tensor<>;\n"
        "  stagger::Parameter<> scale{\"scale\", {1.0f}};\n"
        "  auto parameters() { return std::tie(scale); }\n"
        "  void forward(stagger::Context& c, Input const& x, Output& y, stagger::NothingSaved&) {\n"
        "    y.resize_like(x);\n"
        "    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[scale][0] * x[i] + " +
        std::to_string(s) +
        ".0f;\n"
        "  }\n"
        "  void backward(stagger::Context& c, Input const& x, Output const& dy, Input& dx, "
        "stagger::NothingSaved&) {\n"
        "    dx.resize_like(x);\n"
        "    for (std::size_t i = 0; i < x.size(); ++i) {\n"
        "      dx[i] = c[scale][0] * dy[i];\n"
        "      c.gradient(scale)[0] += x[i] * dy[i];\n"
        "    }\n"
        "  }\n"
        "};\n";
  }
  code += "\nint main() {\n  auto train = stagger::Pipeline{";
  for (int s = 0; s < stages; ++s)
    code += (s == 0 ? "Stage" : ", Stage") + std::to_string(s) + "{}";
  code +=
      "}.with(\n"
      "      stagger::schedule::OneFOneB{}, stagger::loss::MeanSquaredError<>{}, "
      "stagger::optimizer::AdamW{},\n"
      "      stagger::host::Threads{2});\n"
      "  stagger::Batch<stagger::Tensor<>, stagger::Tensor<>> batch;\n"
      "  batch.inputs.assign(8, stagger::Tensor<>({4}));\n"
      "  batch.targets.assign(8, stagger::Tensor<>({4}));\n"
      "  return stagger::run(train.step(batch)).loss < 1e9 ? 0 : 1;\n"
      "}\n";
  return code;
}

std::string const tbb_include = "#include <tbb/parallel_pipeline.h>\n";

std::string tbb_pipeline() {
  return tbb_include +
         "\nint main() {\n"
         "  int n = 0;\n"
         "  auto const serial = tbb::filter_mode::serial_in_order;\n"
         "  tbb::parallel_pipeline(\n"
         "      4, tbb::make_filter<void, int>(serial, [&](tbb::flow_control& c) { if (n == 8) "
         "c.stop(); return n++; }) &\n"
         "             tbb::make_filter<int, float>(serial, [](int x) { return x * 2.0f; }) &\n"
         "             tbb::make_filter<float, double>(serial, [](float x) { return x + 1.0; }) &\n"
         "             tbb::make_filter<double, void>(serial, [](double) {}));\n"
         "}\n";
}

/// A program that proves 1F1B, or only includes the same headers; with the compiler's default
/// limits.
std::string proof(std::string const& what) {
  std::string const headers =
      "#include <stagger/schedule/one_f_one_b.hpp>\n#include <stagger/schedule/proof/proof.hpp>\n"
      "using namespace stagger;\nusing namespace stagger::schedule;\n";
  return what.empty() ? headers : headers + "static_assert(accepted<" + what + ">);\n";
}

struct Proof {
  char const* name;
  char const* code;
  double bound_s;
};
constexpr Proof proofs[] = {{"P=8, M=32", "verify(OneFOneB{}, Shape{8, 32})", 0.5},
                            {"P=64, M=256", "proof<OneFOneB{}, Shape{64, 256}>", 5}};

/// The compiler of this build and, if it is installed, the other of g++ and clang.
std::vector<std::string> compilers() {
  std::vector<std::string> all{BENCH_COMPILER};
  bool const clang = all[0].find("clang") != std::string::npos;
  for (char const* other : {"g++", "clang++-19", "clang++"}) {
    bool const is_clang = std::string(other).find("clang") != std::string::npos;
    if (is_clang == clang) continue;
    if (std::system((std::string(other) + " --version >/dev/null 2>&1").c_str()) != 0) continue;
    all.emplace_back(other);
    break;
  }
  return all;
}

std::string name_of(std::string const& what) { return "compile/" + what; }
std::string proof_name(std::string const& compiler, std::string const& what) {
  return name_of("proof/" + std::filesystem::path(compiler).filename().string() + "/" + what);
}
std::string stages_name(int stages, bool apart = false) {
  return name_of((apart ? "separate/stages:" : "stages:") + std::to_string(stages));
}

void add_compilation(Folder const& folder, std::string const& name, std::string const& code,
                     char const* compiler = BENCH_COMPILER) {
  std::string file = name;
  for (char& c : file)
    if (c == '/' || c == ':') c = '_';
  auto const source = folder.path() / (file + ".cpp");
  std::ofstream(source) << code;
  bench::add(name, repetitions, [source, compiler](benchmark::State& state) {
    Cost cost;
    for ([[maybe_unused]] auto _ : state) {
      cost = compile(source, compiler);
      state.SetIterationTime(cost.processor_s);
    }
    if (!cost.compiled) state.SkipWithError((std::string(compiler) + " refuses it").c_str());
    state.counters["MiB"] = cost.memory_mib;
  })->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  Folder const folder;
  add_compilation(folder, name_of("oneTBB/include"), tbb_include);
  add_compilation(folder, name_of("oneTBB/4_filters"), tbb_pipeline());
  std::string const include = "#include <stagger/stagger.hpp>\n";
  add_compilation(folder, name_of("include"), include);
  add_compilation(folder, name_of("separate/include"), separate + include);
  add_compilation(folder, name_of("separate/engine"), "#include <stagger/separate.hpp>\n");
  for (int const stages : stage_counts) {
    add_compilation(folder, stages_name(stages), pipeline(stages));
    add_compilation(folder, stages_name(stages, true), separate + pipeline(stages));
  }

  auto const unit = [](char const* what, bool apart) {
    return bench::Row{
        what, name_of("(separate/stages:4$|stages:4$|oneTBB)"),
        [apart](bench::Results const& results) {
          auto const name = stages_name(4, apart);
          double const ours_s = results.time_s(name);
          double const tbb_s = results.time_s(name_of("oneTBB/include"));
          return bench::Line{
              bench::text("%.2f s, %.0f MiB; including oneTBB's pipeline %.2f s, %.0f MiB", ours_s,
                          results.counter(name, "MiB"), tbb_s,
                          results.counter(name_of("oneTBB/include"), "MiB")),
              bench::text("at most twice that (%.2f s)", 2 * tbb_s),
              ours_s <= 2 * tbb_s ? bench::Grade::passed : bench::Grade::failed};
        }};
  };
  auto const growth = [](char const* what, bool apart) {
    return bench::Row{
        what, name_of("stages:"), [apart](bench::Results const& results) {
          double const more_s =
              (results.time_s(stages_name(64, apart)) - results.time_s(stages_name(4, apart))) / 60;
          return bench::Line{
              bench::text("%.3f s; 16 stages %.2f s, %.0f MiB; 64 stages %.2f s, %.0f MiB", more_s,
                          results.time_s(stages_name(16, apart)),
                          results.counter(stages_name(16, apart), "MiB"),
                          results.time_s(stages_name(64, apart)),
                          results.counter(stages_name(64, apart), "MiB")),
              "aim 0.06 s", more_s <= 0.06 ? bench::Grade::passed : bench::Grade::failed};
        }};
  };
  std::vector<bench::Row> rows{
      unit("compiling a 4-stage pipeline, -O2, the engine compiled once", true),
      unit("the same, the engine compiled with it", false),
      growth("compiling, each further stage type", true),
      growth("the same, the engine compiled with it", false)};
  static auto const all = compilers();
  for (std::string const& compiler : all) {
    add_compilation(folder, proof_name(compiler, "none"), proof(""), compiler.c_str());
    for (Proof const& one : proofs) {
      add_compilation(folder, proof_name(compiler, one.name), proof(one.code), compiler.c_str());
      std::string const word = std::filesystem::path(compiler).filename().string();
      rows.push_back({std::string("static_assert of 1F1B, ") + one.name + ", " + word,
                      name_of("proof/"), [compiler, one](bench::Results const& results) {
                        double const more_s = results.time_s(proof_name(compiler, one.name)) -
                                              results.time_s(proof_name(compiler, "none"));
                        return bench::Line{
                            bench::text("%.2f s more than without it", more_s),
                            bench::text("at most %g s", one.bound_s),
                            more_s <= one.bound_s ? bench::Grade::passed : bench::Grade::failed};
                      }});
    }
  }
  return bench::run(argc, argv, rows);
}
