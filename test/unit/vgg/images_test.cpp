// SPDX-License-Identifier: Apache-2.0
#include "vgg/images.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

#include <stagger/core/error.hpp>

#include "catch.hpp"

namespace images_test {

using vgg::Minibatch;

namespace {

constexpr std::size_t record = 3073;

/// A folder with CIFAR-10's six files, of two images each, which goes with the object.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("vgg-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
    for (int number = 1; number <= 5; ++number)
      write("data_batch_" + std::to_string(number) + ".bin", image(number) + image(number + 4));
    write("test_batch.bin", image(0) + image(7));
  }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  /// Red is the number of the pixel modulo 251, green ten times the label, blue 255.
  [[nodiscard]] static std::string image(int label) {
    std::string bytes(record, '\xff');
    bytes[0] = static_cast<char>(label);
    for (std::size_t p = 0; p < 1024; ++p) {
      bytes[1 + p] = static_cast<char>(p % 251);
      bytes[1 + 1024 + p] = static_cast<char>(10 * label);
    }
    return bytes;
  }
  void write(std::string const& name, std::string const& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }
  [[nodiscard]] std::string name() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("vgg/Minibatch: rows are cut evenly, and each microbatch begins behind the one before",
          "[vgg]") {
  for (std::size_t examples = 1; examples <= 9; ++examples)
    for (std::size_t microbatches = 1; microbatches <= examples; ++microbatches) {
      Minibatch const cut{examples, microbatches};
      std::size_t sum = 0;
      for (std::size_t m = 0; m < microbatches; ++m) {
        CHECK(cut.first(m) == sum);
        CHECK(cut.rows(m) >= examples / microbatches);
        CHECK(cut.rows(m) <= cut.rows(0));
        sum += cut.rows(m);
      }
      CHECK(sum == examples);
    }
}

TEST_CASE("vgg/read_cifar: labels and colours of all images are those of the files", "[vgg]") {
  Folder const folder;
  auto const data = vgg::read_cifar(folder.name(), 2);
  CHECK(data.training.labels == std::vector<std::uint8_t>{1, 5, 2, 6, 3, 7, 4, 8, 5, 9});
  CHECK(data.held_out.labels == std::vector<std::uint8_t>{0, 7});
  REQUIRE(data.training.pixels.size() == 10 * 3072);
  for (std::size_t i = 0; i < 10; ++i)
    for (std::size_t p = 0; p < 1024; ++p) {
      std::uint8_t const* const pixel = data.training.pixels.data() + (i * 1024 + p) * 3;
      REQUIRE(pixel[0] == p % 251);
      REQUIRE(pixel[1] == 10 * data.training.labels[i]);
      REQUIRE(pixel[2] == 255);
    }
}

TEST_CASE("vgg/read_cifar: what is no CIFAR-10 is refused by name and numbers", "[vgg]") {
  using Catch::Contains;
  Folder const folder;
  auto const read = [&] { return vgg::read_cifar(folder.name(), 2); };
  std::string const two = Folder::image(3) + Folder::image(4);

  folder.write("data_batch_3.bin", two.substr(0, 6000));
  CHECK_THROWS_WITH(read(),
                    Contains("/data_batch_3.bin' has 6000 bytes instead of the 6146 of 2 images"));
  folder.write("data_batch_3.bin", two + "x");
  CHECK_THROWS_WITH(read(), Contains("has 6147 bytes instead of the 6146"));
  folder.write("data_batch_3.bin", "");
  CHECK_THROWS_WITH(read(), Contains("has 0 bytes instead of the 6146"));
  folder.write("data_batch_3.bin", two);
  for (int const label : {10, 255}) {
    folder.write("test_batch.bin", Folder::image(9) + Folder::image(label));
    CHECK_THROWS_WITH(read(),
                      Contains("image 1 of '") &&
                          Contains("/test_batch.bin' has the label " + std::to_string(label)) &&
                          Contains("0 to 9"));
  }
  std::filesystem::remove(folder.name() + "/test_batch.bin");
  CHECK_THROWS_WITH(read(), Contains("there is no file '") && Contains("/test_batch.bin'"));
  std::filesystem::create_directory(folder.name() + "/test_batch.bin");
  CHECK_THROWS_WITH(read(), Contains("/test_batch.bin' is no file"));
  CHECK_THROWS_WITH(vgg::read_cifar("/nowhere", 2), Contains("'/nowhere/data_batch_1.bin'"));
}

TEST_CASE("vgg/make_textures: a seed gives the same images, and held-out ones are others",
          "[vgg]") {
  auto const data = vgg::make_textures(3, 40, 20);
  auto const again = vgg::make_textures(3, 40, 20);
  CHECK(data.training.pixels == again.training.pixels);
  CHECK(data.held_out.pixels == again.held_out.pixels);
  CHECK(vgg::make_textures(4, 40, 20).training.pixels != data.training.pixels);
  std::set<std::vector<std::uint8_t>> different;
  for (vgg::Images const* const images : {&data.training, &data.held_out})
    for (std::size_t i = 0; i < images->size(); ++i) {
      auto const begin = images->pixels.begin() + static_cast<std::ptrdiff_t>(i * 3072);
      different.insert({begin, begin + 3072});
      CHECK(images->labels[i] == i % 10);
    }
  CHECK(different.size() == 60);
}

TEST_CASE("vgg/Images: a step has the same images in any number of microbatches", "[vgg]") {
  auto const images = vgg::make_textures(3, 40, 1).training;
  auto const drawn = [&](std::uint64_t seed, std::int64_t step, Minibatch const& minibatch) {
    vgg::Batch batch;
    images.draw(seed, step, minibatch, batch);
    std::vector<float> all;
    for (std::size_t m = 0; m < minibatch.microbatches; ++m) {
      all.insert(all.end(), batch.inputs[m].begin(), batch.inputs[m].end());
      for (auto const label : batch.targets[m]) all.push_back(static_cast<float>(label));
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  auto const usual = drawn(1, 5, {7, 1});
  CHECK(drawn(1, 5, {7, 3}) == usual);
  CHECK(drawn(1, 6, {7, 1}) != usual);
  CHECK(drawn(2, 5, {7, 1}) != usual);
}

TEST_CASE("vgg/Images: those that are taken have their labels and values around zero", "[vgg]") {
  auto const images = vgg::make_textures(3, 30, 1).training;
  vgg::Batch batch;
  images.take(4, {5, 2}, batch);
  REQUIRE(batch.inputs.size() == 2);
  CHECK(batch.inputs[1].extents() == std::array<std::size_t, 4>{2, 32, 32, 3});
  CHECK(batch.targets[0][0] == 4);
  CHECK(batch.targets[1][1] == 8);
  for (std::size_t e = 0; e < 3072; ++e)
    REQUIRE(batch.inputs[1][e] == (static_cast<float>(images.pixels[7 * 3072 + e]) - 128) / 64);
}

}  // namespace images_test
