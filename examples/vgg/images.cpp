// SPDX-License-Identifier: Apache-2.0
#include "images.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <stagger/core/error.hpp>

#include "layers/initial.hpp"

namespace vgg {

using layers::Random;
using stagger::Errc;
using stagger::raise;

namespace {

constexpr std::size_t pixels_of_image = side * side;
constexpr std::size_t bytes_of_image = pixels_of_image * colours;
constexpr std::size_t bytes_of_record = 1 + bytes_of_image;

template <class Pick>
void fill(Images const& images, Minibatch const& minibatch, Batch& batch, Pick pick) {
  batch.inputs.resize(minibatch.microbatches);
  batch.targets.resize(minibatch.microbatches);
  for (std::size_t m = 0; m < minibatch.microbatches; ++m) {
    std::size_t const rows = minibatch.rows(m);
    batch.inputs[m].resize({rows, side, side, colours});
    batch.targets[m].resize({rows});
    for (std::size_t r = 0; r < rows; ++r) {
      std::size_t const image = pick();
      std::uint8_t const* const from = images.pixels.data() + image * bytes_of_image;
      std::transform(from, from + bytes_of_image, batch.inputs[m].data() + r * bytes_of_image,
                     [](std::uint8_t value) { return static_cast<float>(value - 128) / 64; });
      batch.targets[m][r] = images.labels[image];
    }
  }
}

/// Adds the images of a file, each of which has a label, and a plane of bytes for each colour.
void add_file(std::string const& name, std::size_t images, Images& to) {
  constexpr char const* remedy =
      "; --data DIR is the folder with the six files of CIFAR-10's binary version";
  std::error_code error;
  auto const status = std::filesystem::status(name, error);
  if (!std::filesystem::exists(status)) raise(Errc::io, "there is no file '", name, "'", remedy);
  if (!std::filesystem::is_regular_file(status)) raise(Errc::io, "'", name, "' is no file", remedy);
  std::ifstream file(name, std::ios::binary);
  if (!file.is_open()) raise(Errc::io, "cannot read '", name, "': ", std::strerror(errno), remedy);
  std::size_t const wanted = images * bytes_of_record;
  auto const size = std::filesystem::file_size(name, error);
  if (error || size != wanted)
    raise(Errc::bad_data, "'", name, "' has ", stagger::counted(size, "byte"), " instead of the ",
          wanted, " of ", stagger::counted(images, "image"),
          "; fetch CIFAR-10's binary version again");
  std::vector<char> records(wanted);
  if (!file.read(records.data(), static_cast<std::streamsize>(wanted)))
    raise(Errc::io, "'", name, "' ended after ", file.gcount(), " of ", wanted,
          " bytes; read it when nothing writes to it");
  for (std::size_t i = 0; i < images; ++i) {
    auto const* const record =
        reinterpret_cast<unsigned char const*>(records.data() + i * bytes_of_record);
    if (*record >= classes)
      raise(Errc::bad_data, "image ", i, " of '", name, "' has the label ", *record,
            ", and CIFAR-10 has 0 to ", classes - 1, "; fetch its binary version again");
    to.labels.push_back(*record);
    for (std::size_t p = 0; p < pixels_of_image; ++p)
      for (std::size_t c = 0; c < colours; ++c)
        to.pixels.push_back(record[1 + c * pixels_of_image + p]);
  }
}

double between(Random& random, double least, double most) {
  return least + (most - least) * random.uniform();
}

/// Nearly normal with deviation 1, and much faster than Random::normal().
double bell(Random& random) {
  double sum = -1.5;
  for (int i = 0; i < 3; ++i) sum += random.uniform();
  return 2 * sum;
}

/// A wave over the image, with values in [-1, 1].
struct Wave {
  double along_x, along_y, phase;

  /// @param angle   of the direction in which the wave varies, in radians
  /// @param period  in pixels
  Wave(double angle, double period, Random& random)
      : along_x(std::cos(angle) * 2 * pi / period),
        along_y(std::sin(angle) * 2 * pi / period),
        phase(between(random, 0, 2 * pi)) {}

  [[nodiscard]] double operator()(std::size_t x, std::size_t y) const {
    return std::sin(along_x * static_cast<double>(x) + along_y * static_cast<double>(y) + phase);
  }

  static constexpr double pi = 3.141592653589793;
};

void add_texture(std::uint8_t label, Random& random, Images& to) {
  constexpr double noise = 20;  // of a pixel, of 255
  bool const grating = label < 8;
  double const angle = (grating ? label % 4 * Wave::pi / 4 : 0) + between(random, -0.1, 0.1);
  double const period = (grating && label >= 4 ? 4.5 : 9) * between(random, 0.92, 1.08);
  Wave const first(angle, period, random);
  Wave const second(angle + Wave::pi / 2, period, random);
  std::array<double, colours> middle{};
  std::array<double, colours> contrast{};
  for (std::size_t c = 0; c < colours; ++c) {
    middle[c] = between(random, 90, 165);
    contrast[c] = between(random, 25, 80);
    if (random.uniform() < 0.5) contrast[c] = -contrast[c];
  }
  for (std::size_t y = 0; y < side; ++y)
    for (std::size_t x = 0; x < side; ++x) {
      double value = first(x, y);
      if (label == 8) value = std::clamp(8 * value * second(x, y), -1.0, 1.0);
      if (label == 9) value = value + second(x, y) > 1 ? 1 : -1;
      for (std::size_t c = 0; c < colours; ++c) {
        double const seen = middle[c] + contrast[c] * value + noise * bell(random);
        to.pixels.push_back(static_cast<std::uint8_t>(std::clamp(seen, 0.0, 255.0)));
      }
    }
  to.labels.push_back(label);
}

Images textures(Random random, std::size_t images) {
  Images made;
  made.pixels.reserve(images * bytes_of_image);
  for (std::size_t i = 0; i < images; ++i)
    add_texture(static_cast<std::uint8_t>(i % classes), random, made);
  return made;
}

}  // namespace

void Images::draw(std::uint64_t seed, std::int64_t step, Minibatch const& minibatch,
                  Batch& batch) const {
  Random random = layers::stream(seed, 1000 + static_cast<std::uint64_t>(step));
  fill(*this, minibatch, batch, [&] { return random.below(size()); });
}

void Images::take(std::size_t first, Minibatch const& minibatch, Batch& batch) const {
  fill(*this, minibatch, batch, [&] { return first++; });
}

DataSet read_cifar(std::string const& folder, std::size_t images_per_file) {
  DataSet data;
  data.training.pixels.reserve(5 * images_per_file * bytes_of_image);
  data.held_out.pixels.reserve(images_per_file * bytes_of_image);
  for (int number = 1; number <= 5; ++number)
    add_file(folder + stagger::text("/data_batch_", number, ".bin"), images_per_file,
             data.training);
  add_file(folder + "/test_batch.bin", images_per_file, data.held_out);
  return data;
}

DataSet make_textures(std::uint64_t seed, std::size_t training, std::size_t held_out) {
  return {textures(layers::stream(seed, 1), training), textures(layers::stream(seed, 2), held_out)};
}

}  // namespace vgg
