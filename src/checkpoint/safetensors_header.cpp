#include "safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "terrace/core/json.h"

namespace terrace::checkpoint {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

struct KnownType {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<KnownType, 16> kTypes = {{
    {"F32", 4},
    {"BF16", 2},
    {"F16", 2},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"I32", 4},
    {"U32", 4},
    {"I16", 2},
    {"U16", 2},
    {"I8", 1},
    {"U8", 1},
    {"BOOL", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
}};

/// Takes the parser's events one by one, so that a large header never exists as a JSON tree, and
/// so that a duplicate key, a negative or a fractional number is seen as it was written.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(SafetensorsHeader& header, const std::string& path, ErrorKind kind)
      : header_(header), path_(path), kind_(kind) {}

  bool key(string_t& name) override {
    if (at_ == At::names) {
      if (name == kMetadata) {
        require(!has_metadata_, kind_, "{} is malformed: its header has {} twice", path_, name);
        has_metadata_ = metadata_next_ = true;
      } else {
        header_.tensors.emplace_back().name = name;
        fields_ = 0;
      }
    } else if (at_ == At::metadata) {
      header_.metadata.emplace_back(name, "");
    } else {
      enter_field(name);
    }
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    if (at_ == At::start) {
      at_ = At::names;
    } else if (at_ == At::names) {
      at_ = metadata_next_ ? At::metadata : At::tensor;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (at_ == At::tensor) {
      require(fields_ == kAllFields, kind_,
              "{} is malformed: tensor \"{}\" lacks one of dtype, shape and data_offsets", path_,
              current().name);
    }
    at_ = at_ == At::names ? At::end : At::names;
    metadata_next_ = false;
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    if (at_ != At::tensor || (field_ != kShape && field_ != kOffsets)) refuse("an array");
    at_ = field_ == kShape ? At::shape : At::offsets;
    offsets_read_ = 0;
    return true;
  }

  bool end_array() override {
    require(at_ != At::offsets || offsets_read_ == 2, kind_,
            "{} is malformed: data_offsets of tensor \"{}\" has {} numbers, but two were expected",
            path_, current().name, offsets_read_);
    at_ = At::tensor;
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == At::metadata) {
      header_.metadata.back().second = text;
    } else if (at_ == At::tensor && field_ == kDtype) {
      current().dtype = text;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (at_ == At::shape) {
      require(number <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}, kind_,
              "{} is malformed: tensor \"{}\" has a dimension of {}", path_, current().name,
              number);
      current().shape.push_back(static_cast<std::int64_t>(number));
    } else if (at_ == At::offsets) {
      if (offsets_read_ == 0) current().begin = number;
      if (offsets_read_ == 1) current().end = number;
      ++offsets_read_;
    } else {
      refuse("a number");
    }
    return true;
  }

  bool number_integer(number_integer_t number) override {
    refuse(fmt::format("the number {}", number));
  }
  bool number_float(number_float_t /*number*/, const string_t& text) override {
    refuse(fmt::format("the number {}", text));
  }
  bool null() override { refuse("null"); }
  bool boolean(bool /*value*/) override { refuse("a truth value"); }
  bool binary(binary_t& /*value*/) override { refuse("binary data"); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    fail(kind_, "{} is malformed: its header is not JSON from byte {} on; {}", path_, position + 7,
         "it is not a safetensors file, or is damaged");
  }

 private:
  enum class At { start, names, metadata, tensor, shape, offsets, end };
  static constexpr unsigned kDtype = 1;
  static constexpr unsigned kShape = 2;
  static constexpr unsigned kOffsets = 4;
  static constexpr unsigned kAllFields = 7;

  TensorEntry& current() { return header_.tensors.back(); }

  void enter_field(const std::string& name) {
    field_ = name == "dtype"          ? kDtype
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    require(field_ != 0 && (fields_ & field_) == 0, kind_,
            "{} is malformed: tensor \"{}\" has {} \"{}\"; dtype, shape and data_offsets, each "
            "once, were expected",
            path_, current().name, field_ != 0 ? "a second" : "the unknown key", name);
    fields_ |= field_;
  }

  [[noreturn]] void refuse(const std::string& found) {
    if (at_ == At::start || at_ == At::names || header_.tensors.empty()) {
      fail(kind_, "{} is malformed: its header has {} where an object was expected", path_, found);
    }
    if (at_ == At::metadata) {
      fail(kind_, "{} is malformed: {} has {} where a string was expected", path_, kMetadata,
           found);
    }
    fail(kind_,
         "{} is malformed: tensor \"{}\" has {} where {} was expected; sizes and offsets are "
         "whole numbers from 0 on",
         path_, current().name, found,
         at_ == At::shape || at_ == At::offsets ? "a whole number"
         : field_ == kDtype                     ? "a dtype's name"
                                                : "a list");
  }

  SafetensorsHeader& header_;
  const std::string& path_;
  ErrorKind kind_;
  At at_ = At::start;
  bool has_metadata_ = false;
  bool metadata_next_ = false;
  unsigned fields_ = 0;
  unsigned field_ = 0;
  int offsets_read_ = 0;
};

/// Checks the range of one tensor against its shape.
void check_range(const TensorEntry& tensor, const std::string& path, ErrorKind kind) {
  const std::uint64_t element = element_bytes(tensor.dtype);
  require(element != 0, kind,
          "{}: tensor \"{}\" has the dtype {}, which is not known; convert the model to F32, BF16 "
          "or F16",
          path, tensor.name, tensor.dtype);
  require(tensor.begin <= tensor.end, kind,
          "{} is malformed: tensor \"{}\" ends at byte {}, before its begin at byte {}", path,
          tensor.name, tensor.end, tensor.begin);
  std::uint64_t bytes = element;
  bool overflows = false;
  for (const std::int64_t dimension : tensor.shape) {
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes);
  }
  // A dimension of 0 after an overflow would hide it, so that the order of dimensions mattered.
  require(!overflows, kind, "{} is malformed: the shape {} of tensor \"{}\" overflows 64 bits",
          path, format_shape(tensor.shape), tensor.name);
  require(bytes == tensor.bytes(), kind,
          "{} is malformed: tensor \"{}\" of shape {} and dtype {} needs {} bytes, but its "
          "data_offsets span {}",
          path, tensor.name, format_shape(tensor.shape), tensor.dtype, bytes, tensor.bytes());
}

void check_duplicates(const std::vector<TensorEntry>& tensors, const std::string& path,
                      ErrorKind kind) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  require(twice == names.end(), kind, "{} is malformed: its header has tensor \"{}\" twice", path,
          twice == names.end() ? std::string_view() : *twice);
}

/// Sorts by range and checks that the ranges are laid end to end from 0.
void check_layout(std::vector<TensorEntry>& tensors, const std::string& path, ErrorKind kind) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& left, const auto& right) {
    return std::tie(left.begin, left.end) < std::tie(right.begin, right.end);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& tensor : tensors) {
    require(tensor.begin == expected, kind,
            "{} is malformed: tensor \"{}\" begins at byte {} of the data, {} the end of the one "
            "before it at byte {}",
            path, tensor.name, tensor.begin,
            tensor.begin < expected ? "inside, before" : "leaving a hole after", expected);
    expected = tensor.end;
  }
}

}  // namespace

std::uint64_t element_bytes(std::string_view dtype) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const KnownType& type) { return type.name == dtype; });
  return found == kTypes.end() ? 0 : found->bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& path,
                                           ErrorKind kind) {
  require(
      !json.empty() && json.front() == '{', kind,
      "{} is malformed: its header does not begin with \"{{\"; it is not a safetensors file, or "
      "is damaged",
      path);
  SafetensorsHeader header;
  HeaderParser parser(header, path, kind);
  nlohmann::json::sax_parse(json.begin(), json.end(), &parser);
  for (const TensorEntry& tensor : header.tensors) check_range(tensor, path, kind);
  check_duplicates(header.tensors, path, kind);
  check_layout(header.tensors, path, kind);
  return header;
}

std::string make_safetensors_header(DType dtype, std::span<const TensorShape> tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t offset = 0;
  for (const TensorShape& tensor : tensors) {
    const std::uint64_t end =
        offset + static_cast<std::uint64_t>(tensor.elements()) * size_of(dtype);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        json_line(tensor.name), file_name_of(dtype), fmt::join(tensor.shape, ","),
                        offset, end);
    offset = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace terrace::checkpoint
