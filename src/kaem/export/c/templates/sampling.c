${stream}
void ${prefix}_stream_quantiles(${prefix}_stream *stream, ${number} u[${guard}_LATENTS])
{
    for (int i = 0; i < ${guard}_LATENTS; i++)${draw}
}

void ${prefix}_stream_sample(${prefix}_stream *stream, ${pixel} image[${guard}_SIZE])
{
    ${number} u[${guard}_LATENTS];
    ${prefix}_stream_quantiles(stream, u);
    ${prefix}_generate(u, image);
}

void ${prefix}_quantiles(uint32_t seed, ${number} u[${guard}_LATENTS])
{
    ${prefix}_stream stream;
    ${prefix}_stream_start(&stream, seed);
    ${prefix}_stream_quantiles(&stream, u);
}

void ${prefix}_sample(uint32_t seed, ${pixel} image[${guard}_SIZE])
{
    ${prefix}_stream stream;
    ${prefix}_stream_start(&stream, seed);
    ${prefix}_stream_sample(&stream, image);
}
