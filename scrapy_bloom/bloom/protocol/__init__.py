"""Operations on stored filters, as generators of script calls; the scripts are in ``lua/``."""
