// SPDX-License-Identifier: Apache-2.0
// checkpoint_fuzz [COUNT [SEED]]: COUNT mutated checkpoints (default 10^6) through their reader. Half
// of them have the right length and checksum. Each is restored, or refused by a stagger::Error that
// names the file and changes nothing; anything else ends the program.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/checksum.hpp>
#include <stagger/core/error.hpp>
#include <stagger/train/checkpoint.hpp>

#include "../unit/temporary_folder.hpp"
#include "driver.hpp"

namespace {

namespace sg = stagger;

constexpr char const* model = "two layers";

/// Parameters of two layers: floats with two states each, doubles with none.
struct Parameters {
  explicit Parameters(std::byte of) {
    for (auto& block : blocks) block.fill(of);
    all[0].name = "weight";
    all[0].type = sg::ElementType::f32;
    all[0].value = blocks[0];
    all[0].state = {std::span<std::byte>(blocks[1]), std::span<std::byte>(blocks[2])};
    all[1].name = "bias";
    all[1].type = sg::ElementType::f64;
    all[1].value = blocks[3];
  }
  std::array<std::array<std::byte, 24>, 4> blocks{};
  std::vector<sg::ParameterState> all = std::vector<sg::ParameterState>(2);
};

/// Gives a file the length and the checksum of what it has become.
std::string mended(std::string text) {
  constexpr std::size_t size_at = 16;
  if (text.size() < size_at + 16) return text;
  text.resize(text.size() / 8 * 8);
  std::uint64_t const size = text.size();
  std::memcpy(text.data() + size_at, &size, sizeof(size));
  sg::detail::Checksum sum;
  sum.add(std::as_bytes(std::span(text)).first(text.size() - 8));
  std::uint64_t const value = sum.value();
  std::memcpy(text.data() + text.size() - 8, &value, sizeof(value));
  return text;
}

std::string file_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TemporaryFolder const folder;
sg::Checkpoints const checkpoints(folder.path());
constexpr std::int64_t step = 7;

std::vector<std::string> seeds() {
  Parameters const written(std::byte{1});
  std::vector<std::string> files;
  checkpoints.write({step, 1, model, "settings of this run"}, written.all);
  files.push_back(file_of(checkpoints.path(step)));
  checkpoints.write({step, 1, model, ""}, written.all);
  files.push_back(file_of(checkpoints.path(step)));
  checkpoints.write({step, 1, "none", ""}, std::span<sg::ParameterState const>());
  files.push_back(file_of(checkpoints.path(step)));
  return files;
}

using namespace std::string_view_literals;
constexpr std::string_view pieces[] = {"\0\0\0\0\0\0\0\0"sv,
                                       "\xff\xff\xff\xff\xff\xff\xff\xff"sv,
                                       "\xff\xff\xff\xff\xff\xff\xff\x7f"sv,
                                       "\xf8\xff\xff\xff\xff\xff\xff\xff"sv,
                                       "\x18\0\0\0\0\0\0\0"sv,
                                       "\x01\0\0\0\x02\0\0\0"sv,
                                       "\xff\xff\xff\xff"sv,
                                       "stgrckpt"sv,
                                       "\x01"sv};
fuzz::Program const program{"checkpoint_fuzz", pieces, seeds(), 40, 4};

/// How far it came: 0 refused as damaged, 1 refused as of another model, 2 restored.
int restored(std::string const& text) {
  std::string const path = checkpoints.path(step);
  std::ofstream(path, std::ios::binary).write(text.data(), std::ssize(text));
  Parameters into(std::byte{2});
  auto const before = into.blocks;
  try {
    if (checkpoints.restore(model, into.all).file != path) program.fail("another file", text);
    return 2;
  } catch (sg::Error const& error) {
    if (into.blocks != before) program.fail("it is refused, but has changed parameters", text);
    if (std::string_view(error.what()).find(path) == std::string_view::npos)
      program.fail(error.what(), text);
    if (error.code() == sg::Errc::mismatch) return 1;
    if (error.code() != sg::Errc::bad_data) program.fail(error.what(), text);
    return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  long long came[3] = {0, 0, 0};
  bool mend = false;
  return program.run(
      argc, argv,
      [&](std::string const& text) { ++came[restored((mend = !mend) ? mended(text) : text)]; },
      [&](long long count, unsigned long long seed) {
        std::printf(
            "%lld checkpoints with seed %llu: %lld damaged, %lld of another model, %lld restored\n",
            count, seed, came[0], came[1], came[2]);
        return came[0] > 0 && came[1] > 0 && came[2] > 0;
      });
}
