// gpu_chain NODE: opens the node and says so. Each process lives for the moment of its fork, and passes the node on.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 2 || open(words[1], O_RDONLY | O_NONBLOCK) < 0) {
        perror("open");
        return 1;
    }
    puts("has it");
    fflush(stdout);
    for (;;)
        if (fork() > 0)
            _exit(0);
}
