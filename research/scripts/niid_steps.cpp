// The small CNN of niid_bench on one thread: the local training of niid_scaffold.py, and forward and backward pass of
// niid_network.py, which compiles it with -DCHANNELS=1 -DSIZE=28, or with 3 and 32 for CIFAR-10.
//
// The batch is the last axis of every array, so that each operation works on whole vectors of samples. A short last
// batch is filled up with its first sample, whose gradient is set to zero. The weights lie in one vector, in the order
// of torch's parameters.

#include <cmath>
#include <cstring>

typedef float Vector __attribute__((vector_size(64), aligned(64), may_alias));

constexpr int BATCH = 64;
constexpr int LANES = 16;
constexpr int KERNEL = 5;
constexpr int TAPS = KERNEL * KERNEL;
constexpr int CLASSES = 10;
constexpr int PIXELS = CHANNELS * SIZE * SIZE;
constexpr int SIDE1 = SIZE - KERNEL + 1;  // of the first convolution's maps
constexpr int SIDE2 = SIDE1 / 2 - KERNEL + 1;  // of the second one's
constexpr int FLAT = 16 * (SIDE2 / 2) * (SIDE2 / 2);

// Where the tensors begin in the vector of weights.
constexpr int CONV1 = 0;
constexpr int CONV1_BIAS = CONV1 + 6 * CHANNELS * TAPS;
constexpr int CONV2 = CONV1_BIAS + 6;
constexpr int CONV2_BIAS = CONV2 + 16 * 6 * TAPS;
constexpr int DENSE1 = CONV2_BIAS + 16;
constexpr int DENSE1_BIAS = DENSE1 + 120 * FLAT;
constexpr int DENSE2 = DENSE1_BIAS + 120;
constexpr int DENSE2_BIAS = DENSE2 + 84 * 120;
constexpr int DENSE3 = DENSE2_BIAS + 84;
constexpr int DENSE3_BIAS = DENSE3 + CLASSES * 84;
constexpr int WEIGHTS = DENSE3_BIAS + CLASSES;

// A batch of numbers, and channels of square maps of them.
struct alignas(64) Batch {
    float values[BATCH];
    Vector& at(int lane) { return *reinterpret_cast<Vector*>(values + lane); }
};
template <int DEPTH, int SIDE> struct Maps {
    Batch at[DEPTH][SIDE][SIDE];
};

static Maps<CHANNELS, SIZE> image;
static Maps<6, SIDE1> conv1;
static Maps<6, SIDE1 / 2> pool1, pool1_gradient;
static Maps<16, SIDE2> conv2;
static Maps<16, SIDE2 / 2> pool2, pool2_gradient;
static Batch dense1[120], dense1_gradient[120];
static Batch dense2[84], dense2_gradient[84];
static Batch outputs[CLASSES];

static float sum(Vector vector) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += vector[lane];
    return total;
}

// NaN stays, here and below.
static Vector positive(Vector vector) { return vector < 0 ? Vector{} : vector; }

// BLOCK output channels are computed together, so that an input is read once for all of them, and two vectors of each,
// so that a weight is read once for both.
template <int BLOCK, int IN, int OUT, int SIDE>
static void convolve(const float* weight, const float* bias, Maps<IN, SIDE + KERNEL - 1>& input, Maps<OUT, SIDE>& output) {
    for (int first = 0; first < OUT; first += BLOCK)
    for (int y = 0; y < SIDE; y++)
    for (int x = 0; x < SIDE; x++)
    for (int lane = 0; lane < BATCH; lane += 2 * LANES) {
        Vector totals[BLOCK][2];
        for (int c = 0; c < BLOCK; c++) totals[c][0] = totals[c][1] = Vector{} + bias[first + c];
        for (int channel = 0; channel < IN; channel++)
        for (int dy = 0; dy < KERNEL; dy++)
        for (int dx = 0; dx < KERNEL; dx++) {
            Batch& values = input.at[channel][y + dy][x + dx];
            for (int c = 0; c < BLOCK; c++) {
                float factor = weight[((first + c) * IN + channel) * TAPS + dy * KERNEL + dx];
                totals[c][0] += factor * values.at(lane);
                totals[c][1] += factor * values.at(lane + LANES);
            }
        }
        for (int c = 0; c < BLOCK; c++) {
            output.at[first + c][y][x].at(lane) = totals[c][0];
            output.at[first + c][y][x].at(lane + LANES) = totals[c][1];
        }
    }
}

template <int BLOCK, int IN, int OUT, int SIDE>
static void convolution_gradient(
    Maps<IN, SIDE + KERNEL - 1>& input, Maps<OUT, SIDE>& output_gradient, float* weight, float* bias
) {
    for (int channel = 0; channel < OUT; channel++) {
        Vector total = {};
        for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
        for (int lane = 0; lane < BATCH; lane += LANES) total += output_gradient.at[channel][y][x].at(lane);
        bias[channel] = sum(total);
    }
    for (int first = 0; first < OUT; first += BLOCK)
    for (int channel = 0; channel < IN; channel++)
    for (int dy = 0; dy < KERNEL; dy++) {
        Vector totals[BLOCK][KERNEL] = {};
        for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
        for (int lane = 0; lane < BATCH; lane += LANES) {
            Vector values[KERNEL];
            for (int dx = 0; dx < KERNEL; dx++) values[dx] = input.at[channel][y + dy][x + dx].at(lane);
            for (int c = 0; c < BLOCK; c++) {
                Vector gradient = output_gradient.at[first + c][y][x].at(lane);
                for (int dx = 0; dx < KERNEL; dx++) totals[c][dx] += gradient * values[dx];
            }
        }
        for (int c = 0; c < BLOCK; c++)
        for (int dx = 0; dx < KERNEL; dx++)
            weight[((first + c) * IN + channel) * TAPS + dy * KERNEL + dx] = sum(totals[c][dx]);
    }
}

template <int IN, int OUT, int SIDE>
static void input_gradient(const float* weight, Maps<OUT, SIDE>& output_gradient, Maps<IN, SIDE + KERNEL - 1>& gradient) {
    for (int y = 0; y < SIDE + KERNEL - 1; y++)
    for (int x = 0; x < SIDE + KERNEL - 1; x++)
    for (int lane = 0; lane < BATCH; lane += 2 * LANES) {
        Vector totals[IN][2] = {};
        for (int out = 0; out < OUT; out++)
        for (int dy = 0; dy < KERNEL; dy++)
        for (int dx = 0; dx < KERNEL; dx++) {
            if (y < dy || x < dx || y - dy >= SIDE || x - dx >= SIDE) continue;
            Batch& values = output_gradient.at[out][y - dy][x - dx];
            for (int c = 0; c < IN; c++) {
                float factor = weight[(out * IN + c) * TAPS + dy * KERNEL + dx];
                totals[c][0] += factor * values.at(lane);
                totals[c][1] += factor * values.at(lane + LANES);
            }
        }
        for (int c = 0; c < IN; c++) {
            gradient.at[c][y][x].at(lane) = totals[c][0];
            gradient.at[c][y][x].at(lane + LANES) = totals[c][1];
        }
    }
}

// ReLU and the largest of 2x2.
template <int DEPTH, int SIDE> static void pool(Maps<DEPTH, 2 * SIDE>& input, Maps<DEPTH, SIDE>& output) {
    for (int c = 0; c < DEPTH; c++)
    for (int y = 0; y < SIDE; y++)
    for (int x = 0; x < SIDE; x++)
    for (int lane = 0; lane < BATCH; lane += LANES) {
        Vector largest = {};
        for (int dy = 0; dy < 2; dy++)
        for (int dx = 0; dx < 2; dx++) {
            Vector value = input.at[c][2 * y + dy][2 * x + dx].at(lane);
            largest = (value > largest) | (value != value) ? value : largest;
        }
        output.at[c][y][x].at(lane) = largest;
    }
}

// The gradient goes to the first largest of 2x2; it is written over the input.
template <int DEPTH, int SIDE>
static void unpool(Maps<DEPTH, 2 * SIDE>& input, Maps<DEPTH, SIDE>& output, Maps<DEPTH, SIDE>& gradient) {
    const Vector zero = {};
    for (int c = 0; c < DEPTH; c++)
    for (int y = 0; y < SIDE; y++)
    for (int x = 0; x < SIDE; x++)
    for (int lane = 0; lane < BATCH; lane += LANES) {
        Vector largest = output.at[c][y][x].at(lane);
        Vector left = largest <= 0 ? zero : gradient.at[c][y][x].at(lane);
        for (int dy = 0; dy < 2; dy++)
        for (int dx = 0; dx < 2; dx++) {
            Vector& value = input.at[c][2 * y + dy][2 * x + dx].at(lane);
            auto is_largest = value == largest;
            value = is_largest ? left : zero;
            left = is_largest ? zero : left;
        }
    }
}

template <int IN, int OUT> static void dense(const float* weight, const float* bias, Batch* input, Batch* output) {
    for (int out = 0; out < OUT; out += 2)
    for (int lane = 0; lane < BATCH; lane += 2 * LANES) {
        Vector totals[2][2];
        for (int o = 0; o < 2; o++) totals[o][0] = totals[o][1] = Vector{} + bias[out + o];
        for (int in = 0; in < IN; in++)
        for (int o = 0; o < 2; o++) {
            totals[o][0] += weight[(out + o) * IN + in] * input[in].at(lane);
            totals[o][1] += weight[(out + o) * IN + in] * input[in].at(lane + LANES);
        }
        for (int o = 0; o < 2; o++) {
            output[out + o].at(lane) = totals[o][0];
            output[out + o].at(lane + LANES) = totals[o][1];
        }
    }
}

template <int IN, int OUT>
static void dense_gradient(
    const float* weight, Batch* input, Batch* output_gradient, float* weight_gradient, float* bias_gradient, Batch* gradient
) {
    for (int out = 0; out < OUT; out++) {
        Vector total = {};
        for (int lane = 0; lane < BATCH; lane += LANES) total += output_gradient[out].at(lane);
        bias_gradient[out] = sum(total);
    }
    // The samples come first for the weights, so that a vector has the gradients of one output's weights.
    constexpr int WIDTH = (IN + LANES - 1) / LANES;
    static Vector rows[BATCH][WIDTH];
    for (int in = 0; in < IN; in++)
    for (int sample = 0; sample < BATCH; sample++) rows[sample][in / LANES][in % LANES] = input[in].values[sample];
    for (int out = 0; out < OUT; out++) {
        Vector totals[WIDTH] = {};
        for (int sample = 0; sample < BATCH; sample++)
        for (int part = 0; part < WIDTH; part++) totals[part] += output_gradient[out].values[sample] * rows[sample][part];
        std::memcpy(weight_gradient + out * IN, totals, IN * sizeof(float));
    }
    for (int in = 0; in < IN; in++) {
        Vector totals[BATCH / LANES] = {};
        for (int out = 0; out < OUT; out++)
        for (int part = 0; part < BATCH / LANES; part++)
            totals[part] += weight[out * IN + in] * output_gradient[out].at(part * LANES);
        for (int part = 0; part < BATCH / LANES; part++) gradient[in].at(part * LANES) = totals[part];
    }
}

static void relu(Batch* batches, int number) {
    for (int index = 0; index < number; index++)
    for (int lane = 0; lane < BATCH; lane += LANES) batches[index].at(lane) = positive(batches[index].at(lane));
}

// Where ReLU gave zero, its gradient is zero.
static void relu_gradient(Batch* batches, Batch* gradients, int number) {
    for (int index = 0; index < number; index++)
    for (int lane = 0; lane < BATCH; lane += LANES) {
        Vector& gradient = gradients[index].at(lane);
        gradient = batches[index].at(lane) <= 0 ? Vector{} : gradient;
    }
}

static void gather(const float* images, const long* samples, int number) {
    Batch* pixels = &image.at[0][0][0];
    for (int sample = 0; sample < BATCH; sample++) {
        const float* source = images + PIXELS * samples[sample < number ? sample : 0];
        for (int pixel = 0; pixel < PIXELS; pixel++) pixels[pixel].values[sample] = source[pixel];
    }
}

static Batch* flat2() { return &pool2.at[0][0][0]; }

static void forward(const float* weights) {
    convolve<6>(weights + CONV1, weights + CONV1_BIAS, image, conv1);
    pool(conv1, pool1);
    convolve<8>(weights + CONV2, weights + CONV2_BIAS, pool1, conv2);
    pool(conv2, pool2);
    dense<FLAT, 120>(weights + DENSE1, weights + DENSE1_BIAS, flat2(), dense1);
    relu(dense1, 120);
    dense<120, 84>(weights + DENSE2, weights + DENSE2_BIAS, dense1, dense2);
    relu(dense2, 84);
    dense<84, CLASSES>(weights + DENSE3, weights + DENSE3_BIAS, dense2, outputs);
}

// The outputs become the gradient of the mean cross-entropy.
static void cross_entropy(const long* classes, const long* samples, int number) {
    for (int sample = 0; sample < BATCH; sample++) {
        float largest = outputs[0].values[sample];
        for (int k = 1; k < CLASSES; k++) largest = std::fmax(largest, outputs[k].values[sample]);
        float total = 0;
        float powers[CLASSES];
        for (int k = 0; k < CLASSES; k++) {
            powers[k] = std::exp(outputs[k].values[sample] - largest);
            total += powers[k];
        }
        for (int k = 0; k < CLASSES; k++) {
            float& output = outputs[k].values[sample];
            output = 0;
            if (sample < number) output = (powers[k] / total - (classes[samples[sample]] == k)) / number;
        }
    }
}

static void backward(const float* weights, float* gradient) {
    dense_gradient<84, CLASSES>(
        weights + DENSE3, dense2, outputs, gradient + DENSE3, gradient + DENSE3_BIAS, dense2_gradient
    );
    relu_gradient(dense2, dense2_gradient, 84);
    dense_gradient<120, 84>(
        weights + DENSE2, dense1, dense2_gradient, gradient + DENSE2, gradient + DENSE2_BIAS, dense1_gradient
    );
    relu_gradient(dense1, dense1_gradient, 120);
    Batch* flat_gradient = &pool2_gradient.at[0][0][0];
    dense_gradient<FLAT, 120>(
        weights + DENSE1, flat2(), dense1_gradient, gradient + DENSE1, gradient + DENSE1_BIAS, flat_gradient
    );
    unpool(conv2, pool2, pool2_gradient);
    convolution_gradient<4>(pool1, conv2, gradient + CONV2, gradient + CONV2_BIAS);
    input_gradient(weights + CONV2, conv2, pool1_gradient);
    unpool(conv1, pool1, pool1_gradient);
    convolution_gradient<3>(image, conv1, gradient + CONV1, gradient + CONV1_BIAS);
}

extern "C" {

// The outputs for `number` images, in `result` by sample and class.
void outputs_of(const float* weights, const float* images, int number, float* result) {
    long samples[BATCH];
    for (int sample = 0; sample < BATCH; sample++) samples[sample] = sample;
    gather(images, samples, number);
    forward(weights);
    for (int sample = 0; sample < number; sample++)
    for (int k = 0; k < CLASSES; k++) result[sample * CLASSES + k] = outputs[k].values[sample];
}

// The gradient of the weights after `outputs_of`, given that of the outputs.
void gradient_of(const float* weights, const float* output_gradient, int number, float* gradient) {
    for (int sample = 0; sample < BATCH; sample++)
    for (int k = 0; k < CLASSES; k++)
        outputs[k].values[sample] = sample < number ? output_gradient[sample * CLASSES + k] : 0;
    backward(weights, gradient);
}

// The gradient of the mean loss of `number` samples.
void loss_gradient(
    const float* weights, const float* images, const long* classes, const long* samples, int number, float* gradient
) {
    gather(images, samples, number);
    forward(weights);
    cross_entropy(classes, samples, number);
    backward(weights, gradient);
}

// SGD from `weights` on, along `order`, which has the samples of each epoch; returns the longest gradient of the loss.
float train(
    float* weights, const float* images, const long* classes, const long* order, int samples, int epochs,
    const float* correction, bool is_in_gradient, float lr, float momentum, float weight_decay, float clip
) {
    static float gradient[WEIGHTS], velocity[WEIGHTS];
    std::memset(velocity, 0, sizeof velocity);
    float longest = 0;
    for (int epoch = 0; epoch < epochs; epoch++)
    for (int begin = 0; begin < samples; begin += BATCH) {
        int number = samples - begin < BATCH ? samples - begin : BATCH;
        loss_gradient(weights, images, classes, order + static_cast<long>(epoch) * samples + begin, number, gradient);
        double squares = 0;
        for (float value : gradient) squares += static_cast<double>(value) * value;
        float length = std::sqrt(squares);
        longest = std::fmax(longest, length);
        float scale = clip > 0 && length > clip ? clip / length : 1;
        for (int index = 0; index < WEIGHTS; index++) {
            float step = scale * gradient[index] + weight_decay * weights[index];
            if (is_in_gradient) step += correction[index];
            velocity[index] = momentum * velocity[index] + step;
            weights[index] -= lr * velocity[index];
            if (!is_in_gradient) weights[index] -= lr * correction[index];
        }
    }
    return longest;
}
}
