// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <unistd.h>

#include <stagger/core/error.hpp>
#include <stagger/report/format.hpp>

#include "model/shared.hpp"

namespace gpt {

using stagger::Errc;
using stagger::Error;

Text::Text(std::string bytes, std::size_t context) : bytes_(std::move(bytes)), context_(context) {
  std::size_t const window = context + 1;
  if (bytes_.empty())
    throw Error(Errc::bad_data, "the text is empty; give files with text by --text");
  if (bytes_.size() < 2 * window)
    throw Error(Errc::bad_data, "the text has " + stagger::counted(bytes_.size(), "byte") +
                                    ", shorter than the " + std::to_string(2 * window) +
                                    " that --context " + std::to_string(context) +
                                    " needs; give more text or a smaller context");
  std::size_t const parts = std::clamp<std::size_t>(bytes_.size() / (20 * window), 1, 64);
  for (std::size_t p = 0; p < parts; ++p) {
    std::size_t const begin = bytes_.size() * p / parts;
    std::size_t const end = bytes_.size() * (p + 1) / parts;
    std::size_t const middle = end - std::max((end - begin) / 10, window);
    auto const add = [&](std::vector<Part>& to, std::size_t from, std::size_t until) {
      std::size_t const before = to.empty() ? 0 : to.back().windows_before + to.back().windows;
      to.push_back({from, until - from - window + 1, before});
    };
    add(training_, begin, middle);
    add(held_out_, middle, end);
  }
}

std::string Text::read(std::vector<std::string> const& files) {
  namespace fs = std::filesystem;
  auto const refuse = [](std::string const& name, std::string const& why) {
    throw Error(Errc::io, "cannot read the text '" + name + "'" + why);
  };
  auto const most = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                    static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE)) / 2;
  std::string bytes;
  for (std::string const& name : files) {
    std::error_code error;
    auto const status = fs::status(name, error);
    if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_fifo(status))
      refuse(name, ", which is no file; give files that can be read by --text");
    std::ifstream file(name, std::ios::binary);
    if (!file.is_open()) refuse(name, "; give files that can be read by --text");
    std::size_t const begin = bytes.size();
    std::array<char, 1U << 16> piece;
    while (file.read(piece.data(), piece.size()), file.gcount() > 0) {
      bytes.append(piece.data(), static_cast<std::size_t>(file.gcount()));
      if (bytes.size() > most)
        refuse(name, ": the text is longer than half of this machine's memory, " +
                         stagger::report::format_bytes(static_cast<double>(most)) +
                         "; give a part of it");
    }
    if (bytes.compare(begin, 3, "\xEF\xBB\xBF") == 0) bytes.erase(begin, 3);  // a mark of UTF-8
  }
  return bytes;
}

std::string Text::prompt() const {
  if (bytes_.find("\n///") != std::string::npos) return "/// ";
  auto const blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  auto const begin = std::find_if_not(bytes_.begin(), bytes_.end(), blank);
  auto const end = std::find_if(begin, bytes_.end(), blank);
  auto const length = std::min<std::ptrdiff_t>(end - begin, 32);
  return length == 0 ? bytes_.substr(0, 1) : std::string(begin, begin + length) + " ";
}

template <class Pick>
void Text::fill(std::vector<Part> const& parts, std::size_t sequences, Batch& batch,
                Pick pick) const {
  std::size_t const windows = parts.back().windows_before + parts.back().windows;
  std::size_t const microbatches = batch.inputs.size();
  batch.targets.resize(microbatches);
  std::size_t sequence = 0;
  for (std::size_t m = 0; m < microbatches; ++m) {
    std::size_t const here = sequences / microbatches + (m < sequences % microbatches ? 1 : 0);
    batch.inputs[m].resize({here, context_});
    batch.targets[m].resize({here, context_});
    for (std::size_t i = 0; i < here; ++i) {
      std::size_t const drawn = pick(sequence++, windows);
      auto part =
          std::upper_bound(parts.begin(), parts.end(), drawn,
                           [](std::size_t at, Part const& p) { return at < p.windows_before; });
      --part;
      auto const* const from = bytes_.data() + part->begin + (drawn - part->windows_before);
      std::copy_n(from, context_, batch.inputs[m].data() + i * context_);
      std::copy_n(from + 1, context_, batch.targets[m].data() + i * context_);
    }
  }
}

void Text::draw(std::uint64_t seed, std::int64_t step, std::size_t sequences, Batch& batch) const {
  Random random = stream(seed, 1000 + static_cast<std::uint64_t>(step));
  fill(training_, sequences, batch,
       [&](std::size_t, std::size_t windows) { return random.below(windows); });
}

void Text::held_out(std::size_t sequences, Batch& batch) const {
  fill(held_out_, sequences, batch,
       [&](std::size_t sequence, std::size_t windows) { return windows * sequence / sequences; });
}

std::uint64_t Text::fingerprint() const noexcept {
  std::uint64_t h = 0xcbf29ce484222325U;  // FNV-1a
  for (char const byte : bytes_) h = (h ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  return h;
}

std::vector<std::string> own_files(std::string const& hint) {
  namespace fs = std::filesystem;
  auto const is_root = [](fs::path const& folder) {
    std::error_code error;
    return fs::exists(folder / "include" / "stagger" / "stagger.hpp", error);
  };
  fs::path root = hint;
  if (!is_root(root)) {
    root = fs::current_path();
    while (!is_root(root) && root.has_relative_path()) root = root.parent_path();
  }
  if (!is_root(root))
    throw Error(
        Errc::io,
        "the sources of stagger, which are the text to learn when none is given, are neither in '" +
            hint + "' nor above the current folder; give a text by --text FILE");
  std::vector<std::string> files;
  for (auto const& entry : fs::directory_iterator(root))
    if (entry.is_regular_file() && entry.path().extension() == ".md")
      files.push_back(entry.path().string());
  for (char const* const folder : {"docs", "include"})
    if (fs::is_directory(root / folder))
      for (auto const& entry : fs::recursive_directory_iterator(root / folder))
        if (entry.is_regular_file() &&
            (entry.path().extension() == ".md" || entry.path().extension() == ".hpp"))
          files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace gpt
