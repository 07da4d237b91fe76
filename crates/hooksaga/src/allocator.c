/* What jemalloc reads when the program starts. What a large payload took goes back to the system at once: by default each
   arena keeps that for ten seconds, and the memory that large events take adds up. */
#define OPTIONS "oversize_threshold:524288"

/* Beside the C library's malloc, and in its place (musl). */
const char *_rjem_malloc_conf = OPTIONS;
const char *malloc_conf = OPTIONS;
