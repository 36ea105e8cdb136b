module overmind-fs

go 1.26
