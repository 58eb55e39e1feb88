// A device that is not the CPU in type: PrivateUse1, its memory in host memory that CPU tensors may not touch.
//
// Operators run on the CPU's kernels over the same memory, without a copy. What is strict, as on a GPU: tensors of two
// devices never meet in one operator, gloo cannot send them, the device has its own random generator, and every read of
// a value by the host is counted.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <string>

namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);  // its header includes all operators
}

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
const c10::Device device0(kDevice, 0);

std::atomic<int64_t> reads{0}, downloads{0}, uploads{0};
std::atomic<bool> has_float64{true};

void free_memory(void* memory) { std::free(memory); }

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {memory, memory, &free_memory, device0};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return device0; }
  c10::Device getDevice() const override { return device0; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device0); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device0); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// The generator of the device: a stream of numbers of its own, drawn by the CPU's.
struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator inner;
  explicit DeviceGenerator(uint64_t seed = c10::detail::getNonDeterministicRandom())
      : GeneratorImpl(device0, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::make_generator<at::CPUGeneratorImpl>(seed)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(0);
    copy->inner = inner.clone();
    return copy;
  }
};
const at::Generator& default_generator() {
  static at::Generator generator = at::make_generator<DeviceGenerator>(uint64_t{67280421310721});
  return generator;
}

at::Generator& own() { return static_cast<DeviceGenerator*>(default_generator().unsafeGetGeneratorImpl())->inner; }

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<DeviceGenerator>(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto memory = allocator.allocate(bytes);
    std::memcpy(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

void refuse_float64(at::ScalarType type) {
  TORCH_CHECK(has_float64 || type != at::kDouble, "this device has no float64");
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// The same elements for the kernels of the CPU.
at::Tensor on_cpu(const at::Tensor& t) {
  auto* owner = new at::Tensor(t.detach());
  c10::DataPtr memory(
      owner->storage().mutable_data(), owner, [](void* kept) { delete static_cast<at::Tensor*>(kept); }, at::kCPU);
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), owner->storage().nbytes(), std::move(memory), c10::GetAllocator(at::kCPU),
      /*resizable=*/true);
  return tensor_over(std::move(storage), c10::DispatchKey::CPU, t);
}

// What a kernel of the CPU gave, as a tensor of the device: no copy.
at::Tensor on_device(const at::Tensor& t) {
  refuse_float64(t.scalar_type());
  auto* owner = new at::Tensor(t);
  c10::DataPtr memory(
      owner->storage().mutable_data(), owner, [](void* kept) { delete static_cast<at::Tensor*>(kept); }, device0);
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), owner->storage().nbytes(), std::move(memory), &allocator, /*resizable=*/true);
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, t);
}

bool here(const at::Tensor& t) { return t.defined() && t.device().type() == kDevice; }

// Operators whose result the host must read before it can go on: their shape, or a number, depends on values.
const std::set<std::string> waits{"aten::nonzero",  "aten::masked_select", "aten::_unique2", "aten::equal",
                                  "aten::unique_dim", "aten::repeat_interleave", "aten::bincount"};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto begin = stack->size() - count;
  if (waits.count(schema.name())) ++reads;
  std::vector<std::pair<at::Tensor, at::Tensor>> seen;  // of the device, and over the same memory on the CPU
  auto translated = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined()) return t;
    if (!here(t)) {
      TORCH_CHECK(
          t.dim() == 0 && !t.is_sparse(), "Expected all tensors to be on the same device: ", schema.name(),
          " got one on the CPU");
      return t;
    }
    for (auto& [device, cpu] : seen)
      if (device.is_same(t)) return cpu;
    seen.emplace_back(t, on_cpu(t));
    return seen.back().second;
  };
  std::vector<c10::IValue> given(stack->begin() + begin, stack->end());
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[begin + i];
    if (value.isTensor()) {
      value = translated(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(translated(t));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
        list.push_back(t ? std::optional<at::Tensor>(translated(*t)) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      value = c10::Device(at::kCPU);
    } else if (value.isGenerator()) {
      auto* own = dynamic_cast<DeviceGenerator*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(own, "Expected a generator of the device in ", schema.name());
      value = own->inner;
    } else if (value.isNone() && schema.arguments()[i].name() == "generator") {
      value = own();
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  // An `out` that was too small has other memory now.
  for (auto& [device, cpu] : seen) {
    if (cpu.sizes() == device.sizes() && cpu.strides() == device.strides() &&
        (cpu.storage().data() == device.storage().data()))
      continue;
    auto moved = on_device(cpu);
    device.unsafeGetTensorImpl()->set_storage_keep_dtype(moved.storage());
    device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  }
  auto back = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined()) return t;
    for (auto& [device, cpu] : seen) {
      if (cpu.is_same(t)) return device;
      if (t.storage().data() && cpu.storage().data() == t.storage().data()) {  // a view
        return tensor_over(device.storage(), c10::DispatchKey::PrivateUse1, t);
      }
    }
    return on_device(t);
  };
  const auto first = stack->size() - schema.returns().size();
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = back(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(back(t));
      value = list;
    }
  }
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout>, std::optional<c10::Device>,
    std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  const auto type = c10::dtype_or_default(dtype);
  refuse_float64(type);
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device>, std::optional<bool>) {
  const auto type = c10::dtype_or_default(dtype);
  refuse_float64(type);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  if (here(self) && !here(to)) ++downloads;
  if (!here(self) && here(to)) ++uploads;
  auto from = here(self) ? on_cpu(self) : self;
  auto into = here(to) ? on_cpu(to) : to;
  at::NoGradGuard no_grad;
  into.copy_(from);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  ++reads;
  return on_cpu(self).item();
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), size, std::nullopt);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      size, stride.size() == size.size() ? stride : c10::IntArrayRef(c10::contiguous_strides(size)), offset);
  return self;
}

at::Tensor& set_source(at::Tensor& self, at::Storage source) {
  const int64_t length = source.nbytes() / self.itemsize();
  return set_storage(self, std::move(source), 0, {length}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> training) {
  if (training.has_value() && !*training) return {input.clone(), at::ones_like(input, at::kBool)};
  auto noise = at::empty_like(input).bernoulli_(1 - p, default_generator());  // as the CPU, to the bit
  auto mask = noise.to(at::kBool);
  return {at::mul(input, noise.div_(1 - p)), mask};
}

// What autocast does here, as far as the tests need it: the products of layers in the lower precision.
at::Tensor autocast_linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastPrivateUse1);
  const auto lower = at::autocast::get_autocast_dtype(kDevice);
  return at::linear(input.to(lower), weight.to(lower), bias ? std::optional<at::Tensor>(bias->to(lower)) : bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) { m.impl("linear", &autocast_linear); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("view", &at::native::view);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_source);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("native_dropout", &native_dropout);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

TORCH_LIBRARY(strict_device, m) {
  m.def("reads() -> int", [] { return reads.load(); });
  m.def("downloads() -> int", [] { return downloads.load(); });
  m.def("uploads() -> int", [] { return uploads.load(); });
  m.def("set_float64(bool there) -> ()", [](bool there) { has_float64 = there; });
  m.def("seed(int seed) -> ()", [](int64_t seed) { own().set_current_seed(seed); });
  m.def("get_rng_state() -> Tensor", [] { return own().get_state(); });
  m.def("set_rng_state(Tensor state) -> ()", [](const at::Tensor& state) { own().set_state(state); });
  m.def("start() -> ()", [] {
    static bool started = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);
    (void)started;
  });
}
