#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/data/dataset.h"

namespace terrace::testing {

inline void write_bytes(const std::filesystem::path& path, std::string_view contents) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  ASSERT_TRUE(file.good()) << path;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A NumPy file as NumPy writes it, its header padded to a multiple of 64.
inline std::string npy(std::string_view dtype, std::string_view shape, std::string_view payload,
                       int version = 1) {
  std::string header = "{'descr': '" + std::string(dtype) +
                       "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }";
  const std::size_t start = version == 1 ? 10 : 12;
  header.append(63 - (start + header.size()) % 64, ' ');
  header += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (std::size_t byte = 0; byte < start - 8; ++byte) {
    file += static_cast<char>(header.size() >> (8 * byte));
  }
  return file + header + std::string(payload);
}

/// A token file of llm.c.
inline std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count,
                        std::string_view payload) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + std::string(payload);
}

/// Opens data without printing; the lines go to `lines` if given.
inline std::shared_ptr<const data::Dataset> open_quietly(
    const std::vector<std::filesystem::path>& paths, const data::DatasetOptions& options = {},
    std::vector<std::string>* lines = nullptr) {
  Log log([lines](LogLevel, std::string_view line) {
    if (lines != nullptr) lines->emplace_back(line);
  });
  return data::Dataset::open(paths, options, log);
}

inline std::vector<std::int32_t> all_tokens(const data::Dataset& dataset) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.tokens()));
  dataset.read(0, tokens);
  return tokens;
}

/// The tokens of documents: their bytes, a separator behind each.
inline std::vector<std::int32_t> tokens_of(const std::vector<std::string>& documents) {
  std::vector<std::int32_t> tokens;
  for (const std::string& document : documents) {
    for (const char byte : document) tokens.push_back(static_cast<unsigned char>(byte));
    tokens.push_back(0);
  }
  return tokens;
}

/// The message of the error that `action` must throw; checks its kind.
template <class Action>
std::string refusal(ErrorKind kind, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace terrace::testing
