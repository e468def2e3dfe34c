// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/checkpoint.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>

#include "catch.hpp"

#include "../temporary_folder.hpp"

namespace checkpoint_test {

using stagger::Checkpoints;
using stagger::CheckpointState;
using stagger::ParameterState;

namespace {

/// Parameters with memory of their own: a float, a double, and one without optimizer state.
class Model {
 public:
  explicit Model(unsigned seed, std::size_t size = 3) {
    std::mt19937 random(seed);
    add("0.weight", stagger::ElementType::f32, size * 4, 2, random);
    add("0.bias", stagger::ElementType::f64, 8, 2, random);
    add("1.weight", stagger::ElementType::f32, 4, 0, random);
  }
  std::vector<ParameterState> parameters;

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (auto const& memory : memory_) all.insert(all.end(), memory.begin(), memory.end());
    return all;
  }

 private:
  void add(std::string name, stagger::ElementType type, std::size_t bytes, std::size_t states,
           std::mt19937& random) {
    ParameterState parameter;
    parameter.name = std::move(name);
    parameter.type = type;
    auto const block = [&] {
      auto& memory = memory_.emplace_back(bytes);
      for (auto& byte : memory) byte = static_cast<std::byte>(random());
      return std::span(memory);
    };
    parameter.value = block();
    for (std::size_t s = 0; s < states; ++s) parameter.state[s] = block();
    parameters.push_back(std::move(parameter));
  }
  std::vector<std::vector<std::byte>>
      memory_;  // moving a vector leaves its elements where they are
};

std::vector<char> read(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(std::string const& path, std::vector<char> const& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

/// What an Error says; "accepted" where none was thrown.
template <class F> std::string refusal(F const& f) {
  try {
    (void)f();
  } catch (stagger::Error const& error) {
    return error.what();
  }
  return "accepted";
}

CheckpointState state(std::int64_t step) { return {step, 7, "a model", "its settings"}; }

/// The checksum, written from the description of the format.
void seal(std::vector<char>& bytes) {
  std::uint64_t h = 0x9e3779b97f4a7c15U;
  for (std::size_t i = 0; i + 8 < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t b = 8; b-- != 0;) word = word << 8U | static_cast<unsigned char>(bytes[i + b]);
    h = (h ^ word) * 0xff51afd7ed558ccdU;
    h ^= h >> 32U;
  }
  for (std::size_t b = 0; b < 8; ++b) bytes[bytes.size() - 8 + b] = static_cast<char>(h >> (8 * b));
}

}  // namespace

TEST_CASE("train/checkpoint: what is written comes back bit by bit", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path() + "/new/folders");
  Model const written(1);
  checkpoints.write(state(12), written.parameters);
  Model read_back(2);
  REQUIRE(read_back.bytes() != written.bytes());
  auto const restored = checkpoints.restore("a model", read_back.parameters);
  CHECK(read_back.bytes() == written.bytes());
  CHECK(restored.state.step == 12);
  CHECK(restored.state.seed == 7);
  CHECK(restored.state.settings == "its settings");
  CHECK(restored.warnings.empty());
  CHECK(restored.file == folder.path() + "/new/folders/step-000000012.stagger");
}

TEST_CASE("train/checkpoint: arrays larger than the write buffer come back", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const written(1, 300001);
  checkpoints.write(state(1), written.parameters);
  Model read_back(2, 300001);
  (void)checkpoints.restore("a model", read_back.parameters);
  CHECK(read_back.bytes() == written.bytes());
}

TEST_CASE("train/checkpoint: every flipped bit is noticed and changes nothing", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(12), Model(1).parameters);
  auto const good = read(checkpoints.path(12));
  Model model(2);
  auto const before = model.bytes();
  for (std::size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      write(checkpoints.path(12), bad);
      INFO("bit " << bit << " of byte " << i << " of " << good.size());
      try {
        (void)checkpoints.restore("a model", model.parameters);
        FAIL_CHECK("accepted");
      } catch (stagger::Error const& error) {
        if (error.code() != stagger::Errc::bad_data) FAIL_CHECK(error.what());
      }
    }
  CHECK(model.bytes() == before);
}

TEST_CASE("train/checkpoint: every truncation and every appended byte is noticed", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(12), Model(1).parameters);
  auto const good = read(checkpoints.path(12));
  Model model(2);
  auto const before = model.bytes();
  for (std::size_t size = 0; size <= good.size() + 16; ++size) {
    if (size == good.size()) continue;
    auto bad = good;
    bad.resize(size);
    write(checkpoints.path(12), bad);
    std::string const text =
        refusal([&] { return checkpoints.restore("a model", model.parameters); });
    INFO(text);
    CHECK(contains(text, checkpoints.path(12) + " is damaged"));
  }
  CHECK(model.bytes() == before);
}

TEST_CASE("train/checkpoint: numbers that lie under a right checksum are refused, not followed",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(12), Model(1).parameters);
  auto const good = read(checkpoints.path(12));
  Model model(2);
  std::mt19937 random(3);
  int accepted = 0;
  for (std::size_t i = 0; i + 8 < good.size(); ++i)
    for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      auto bad = good;
      bad[i] = static_cast<char>(value);
      if (random() % 2 == 0 && i + 16 < good.size())
        for (std::size_t b = 1; b < 8; ++b) bad[i + b] = static_cast<char>(value);
      seal(bad);
      write(checkpoints.path(12), bad);
      try {  // contents may change, as no one can tell; addresses and sizes may not (the sanitizers
             // watch)
        (void)checkpoints.restore("a model", model.parameters);
        ++accepted;
      } catch (stagger::Error const&) {
      }
    }
  auto sealed = good;
  seal(sealed);
  CHECK(sealed == good);  // the test reads the format as the code writes it
  CHECK(accepted > 100);  // values and states are free
}

TEST_CASE("train/checkpoint: a damaged newest file gives way to the one before, with a warning",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const first(1);
  checkpoints.write(state(10), first.parameters);
  checkpoints.write(state(20), Model(2).parameters);
  auto bytes = read(checkpoints.path(20));
  bytes.resize(bytes.size() / 2);
  write(checkpoints.path(20), bytes);
  Model model(3);
  auto const restored = checkpoints.restore("a model", model.parameters);
  CHECK(restored.state.step == 10);
  CHECK(model.bytes() == first.bytes());
  REQUIRE(restored.warnings.size() == 1);
  INFO(restored.warnings[0]);
  CHECK(contains(restored.warnings[0], checkpoints.path(20) + " is damaged"));
}

TEST_CASE("train/checkpoint: the last two are kept, steps that were abandoned go", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const model(1);
  write(folder.path() + "/notes.txt", {'x'});
  for (std::int64_t step : {1, 2, 3, 999999999, 1000000000})
    checkpoints.write(state(step), model.parameters);
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{1000000000, 999999999});
  write(checkpoints.path(1000000000), {'b', 'a', 'd'});
  write(folder.path() + "/.step-000000005.stagger.17-0.tmp",
        {'x'});  // of a process that was killed
  checkpoints.write(state(999999999 + 5), model.parameters);
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{1000000004, 1000000000});
  checkpoints.write(state(999999999), model.parameters);
  CHECK(folder.names() == std::vector<std::string>{"notes.txt", "step-999999999.stagger"});
}

TEST_CASE(
    "train/checkpoint: a step that cannot be counted on from is refused, and removes no other",
    "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model model(1);
  checkpoints.write(state(7), model.parameters);
  for (std::int64_t const step : {std::int64_t{-5}, (std::int64_t{1} << 48U) + 1, INT64_MAX})
    CHECK_THROWS_WITH(checkpoints.write(state(step), model.parameters),
                      "a checkpoint cannot be of step " + std::to_string(step) +
                          "; count the steps from 0 to 281474976710656");
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{7});
  auto bytes = read(checkpoints.path(7));
  for (std::size_t b = 24; b < 32; ++b) bytes[b] = b == 31 ? '\x7f' : '\xff';  // the step
  seal(bytes);
  write(checkpoints.path(7), bytes);
  CHECK_THROWS_WITH(checkpoints.restore("a model", model.parameters),
                    Catch::Contains("is damaged: it is of step 9223372036854775807"));
  checkpoints.write(state(std::int64_t{1} << 48U), model.parameters);
  CHECK(checkpoints.restore("a model", model.parameters).state.step == std::int64_t{1} << 48U);
}

TEST_CASE("train/checkpoint: a program that writes keeps its temporary file beside another one",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const model(1);
  checkpoints.write(state(1), model.parameters);
  std::string const whole(read(checkpoints.path(1)).data(), read(checkpoints.path(1)).size());
  stagger::WholeFile living(checkpoints.path(5));  // locked as by another process
  living.write(whole.substr(0, whole.size() / 2));
  write(folder.path() + "/.step-000000005.stagger.17-0.tmp", {'x'});  // of a killed process
  checkpoints.write(state(2), model.parameters);
  CHECK(folder.names().size() == 3);  // two checkpoints, and what the other one writes
  living.write(whole.substr(whole.size() / 2));
  living.commit();
  Model back(2);
  CHECK(checkpoints.restore("a model", back.parameters).file == checkpoints.path(5));
  CHECK(back.bytes() == model.bytes());
  checkpoints.write(state(6), model.parameters);
  CHECK(folder.names() ==
        std::vector<std::string>{"step-000000005.stagger", "step-000000006.stagger"});
}

TEST_CASE("train/checkpoint: what cannot be read is said with the remedy", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model model(1);
  checkpoints.write(state(1), model.parameters);
  std::filesystem::create_symlink("nowhere", checkpoints.path(3));
  std::filesystem::create_directory(checkpoints.path(2));
  auto const restored = checkpoints.restore("a model", model.parameters);
  CHECK(restored.state.step == 1);
  CHECK(restored.warnings ==
        std::vector<std::string>{
            "cannot read " + checkpoints.path(3) +
                ": No such file or directory; it is a link to nothing: create what it leads to, or "
                "name another file",
            "cannot read " + checkpoints.path(2) +
                ": Is a directory; give the name of a file that exists"});
  std::string const removed = folder.path() + "/removed";
  Checkpoints const gone(removed);
  std::filesystem::remove(removed);
  CHECK_THROWS_WITH(gone.restore("a model", model.parameters),
                    "cannot read " + removed +
                        ": No such file or directory; give the name of a folder that exists");
  CHECK_THROWS_WITH(gone.write(state(1), model.parameters),
                    Catch::Contains("create the folder first"));
}

TEST_CASE("train/checkpoint: another model is refused with the first difference", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(1), Model(1).parameters);
  auto const refused = [&](std::string const& model, std::vector<ParameterState> const& parameters,
                           std::string const& difference) {
    try {
      (void)checkpoints.restore(model, parameters);
      FAIL_CHECK("accepted, expected: " << difference);
    } catch (stagger::Error const& error) {
      CHECK(error.code() == stagger::Errc::mismatch);
      INFO(error.what());
      CHECK(contains(error.what(), difference));
    }
  };
  Model model(2);
  auto const before = model.bytes();
  refused("another", model.parameters, "it is of 'a model', this is 'another'");
  auto parameters = model.parameters;
  parameters[1].name = "0.other";
  refused("a model", parameters, "parameter 1 is '0.bias' there, here '0.other'");
  parameters = model.parameters;
  parameters[1].type = stagger::ElementType::f32;
  refused("a model", parameters, "'0.bias' has another element type");
  parameters = model.parameters;
  parameters[2].state[0] = parameters[2].value;
  refused("a model", parameters, "the optimizer's state of '1.weight' has 0 bytes there, here 4");
  parameters.pop_back();
  refused("a model", parameters, "it has 3 parameters, this model has 2");
  refused("a model", Model(1, 4).parameters, "parameter '0.weight' has 12 bytes there, here 16");
  CHECK(model.bytes() == before);
}

TEST_CASE("train/checkpoint: a folder that cannot be used is named at once", "[train]") {
  TemporaryFolder const folder;
  write(folder.path() + "/file", {'x'});
  for (std::string const& name :
       {folder.path() + "/file", folder.path() + "/file/below", std::string("/proc/nothing")}) {
    std::string const text = refusal([&] { return Checkpoints(name); });
    INFO(text);
    CHECK(contains(text, name));
    CHECK(contains(text, "another folder"));
  }
  CHECK(contains(refusal([] { return Checkpoints(""); }), "name one"));
  CHECK(contains(refusal([&] { return Checkpoints(folder.path()).restore("", {}); }),
                 "holds no checkpoint"));
}

TEST_CASE("train/checkpoint: a file that stands in the folder, or a link, is not written to",
          "[train]") {
  TemporaryFolder const folder;
  TemporaryFolder const elsewhere;
  std::string const victim = elsewhere.path() + "/victim";
  std::ofstream(victim) << "precious";
  std::string const name = ".stagger-probe-" + std::to_string(::getpid());
  std::vector<std::string> const probes{name, name + "-0", name + "-1"};
  for (auto const& probe : probes)
    std::filesystem::create_symlink(victim, folder.path() + "/" + probe);
  std::ofstream(folder.path() + "/" + name + "-2") << "of another host";
  Checkpoints const checkpoints(folder.path());
  std::string contents;
  std::ifstream(victim) >> contents;
  CHECK(contents == "precious");
  CHECK(folder.names() == std::vector<std::string>{name, name + "-0", name + "-1", name + "-2"});
  CHECK(std::filesystem::file_size(folder.path() + "/" + name + "-2") == 15);
}

TEST_CASE("train/checkpoint: a write that fails leaves what was there", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const model(1, 100000);
  checkpoints.write(state(1), model.parameters);
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);
  ::rlimit const small{300000, before.rlim_max};  // in the middle of the file
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string const text = refusal([&] {
    checkpoints.write(state(2), Model(2, 100000).parameters);
    return 0;
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  INFO(text);
  CHECK(contains(text, "cannot write '" + checkpoints.path(2) + "': File too large"));
  CHECK(folder.names() == std::vector<std::string>{"step-000000001.stagger"});
  Model back(3, 100000);
  CHECK(checkpoints.restore("a model", back.parameters).state.step == 1);
  CHECK(back.bytes() == model.bytes());
}

TEST_CASE(
    "train/checkpoint: kill -9 at any moment leaves a whole checkpoint, none older than was "
    "promised",
    "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  std::mt19937 random(1);
  std::int64_t step = 1;
  checkpoints.write(state(1), Model(1, 20000).parameters);
  for (int round = 0; round < 25; ++round) {
    int promised[2];
    REQUIRE(::pipe(promised) == 0);
    ::pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (std::int64_t next = step + 1;; ++next) {
        checkpoints.write(state(next), Model(static_cast<unsigned>(next), 20000).parameters);
        if (::write(promised[1], &next, sizeof next) < 0) ::_exit(1);
      }
    }
    ::close(promised[1]);
    if (round % 5 == 0) (void)!::read(promised[0], &step, sizeof step);  // let at least one succeed
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (::read(promised[0], &step, sizeof step) == sizeof step) {
    }
    ::close(promised[0]);
    Model model(0, 20000);
    auto const restored = checkpoints.restore("a model", model.parameters);
    CHECK(restored.warnings.empty());
    CHECK(restored.state.step >= step);
    CHECK(model.bytes() == Model(static_cast<unsigned>(restored.state.step), 20000).bytes());
    step = restored.state.step;
  }
  CHECK(step > 5);
}

}  // namespace checkpoint_test
