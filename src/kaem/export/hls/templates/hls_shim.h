/* hls_shim.h: hls::stream where Vitis HLS is not installed, for simulation. */
#ifndef HLS_SHIM_H
#define HLS_SHIM_H

#if defined(__SYNTHESIS__) || defined(__VITIS_HLS__)
#define HLS_STREAM_INSTALLED
#elif defined(__has_include)
#if __has_include(<hls_stream.h>)
#define HLS_STREAM_INSTALLED
#endif
#endif

#ifdef HLS_STREAM_INSTALLED
#include <hls_stream.h>
#else

#include <cstdlib>
#include <queue>

namespace hls {

template <typename T> class stream {
public:
    stream() {}
    explicit stream(const char *) {}
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    bool empty() const { return values.empty(); }
    void write(const T &value) { values.push(value); }

    T read()
    {
        if (values.empty())
            std::abort(); /* hardware would wait for ever */
        const T value = values.front();
        values.pop();
        return value;
    }

private:
    std::queue<T> values;
};

} // namespace hls

#endif
#endif
